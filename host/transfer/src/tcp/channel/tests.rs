//! A connection whose other side is silent, slow, stopped or out of bounds; each says which.

use std::time::{Duration, Instant};

use tokio::net::TcpListener;

use super::*;
use crate::tcp::{Endpoint, Secret};

/// Two sides that know the secret.
async fn pair() -> (Channel, Channel) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let endpoint = Endpoint::new(Secret::new([1; 32])).unwrap();
    let accept = async { endpoint.accept(listener.accept().await.unwrap().0).await.unwrap().0 };
    let (accepted, connected) = tokio::join!(accept, endpoint.connect(address, "lane x"));
    (accepted, connected.unwrap())
}

/// A side that [`FrameWriter::write`] is not in the way of.
async fn say(writer: &mut FrameWriter, bytes: &[u8]) {
    writer.half.write_all(bytes).await.unwrap();
    writer.half.flush().await.unwrap();
}

#[tokio::test]
async fn a_length_that_is_too_long_is_not_believed() {
    for length in [MAX_FRAME_BYTES as u32 + 1, u32::MAX] {
        let (accepted, connected) = pair().await;
        let ((mut reader, _writer), (_reader, mut other)) = (accepted.split(), connected.split());
        say(&mut other, &length.to_le_bytes()).await;
        let read = timeout(Duration::from_secs(5), reader.next()).await.expect("not one byte of it is waited for");
        assert!(matches!(read, Err(ChannelError::TooLong(told)) if told == length as usize), "{read:?}");
    }
}

#[tokio::test]
async fn a_side_with_nothing_to_say_says_so_every_second() {
    let (accepted, connected) = pair().await;
    let ((_reader, mut writer), (mut other, _writer)) = (accepted.split(), connected.split());
    let (_sender, mut queue) = mpsc::channel::<Vec<u8>>(1);
    let carry = writer.carry(&mut queue, |frame, _| frame);
    let hear = async {
        let began = Instant::now();
        for _ in 0..3 {
            assert_eq!(other.half.read_u32_le().await.unwrap(), 0);
        }
        began.elapsed()
    };
    let heard = tokio::select! {
        heard = timeout(Duration::from_secs(8), hear) => heard.expect("keep-alives"),
        ended = carry => panic!("{ended}"),
    };
    assert!(heard >= Duration::from_millis(2_500), "three in {heard:?}");
}

/// Ten seconds each, at the same time.
#[tokio::test]
async fn a_peer_that_stops_is_given_up_in_time() {
    let silent = async {
        let (accepted, _connected) = pair().await;
        accepted.split().0.next().await.unwrap_err()
    };
    let slow = async {
        let (accepted, connected) = pair().await;
        let (_reader, mut writer) = connected.split();
        say(&mut writer, &[&4_u32.to_le_bytes()[..], &[1, 2, 3]].concat()).await;
        accepted.split().0.next().await.unwrap_err()
    };
    let stalled = async |frame: &[u8]| {
        let (accepted, _connected) = pair().await;
        let (_reader, mut writer) = accepted.split();
        loop {
            if let Err(error) = writer.write(frame).await {
                return ("write", error);
            }
            if let Err(error) = writer.flush().await {
                return ("flush", error);
            }
        }
    };
    let in_time = async {
        let (large, small) = (vec![0; 1 << 20], vec![0; 1 << 10]);
        let ((silent, quiet), slow, (large, small)) = tokio::join!(async { (silent.await, Instant::now()) }, slow, async {
            tokio::join!(stalled(&large), stalled(&small))
        });
        assert!(matches!(silent, ChannelError::Silent), "{silent:?}");
        assert!(matches!(slow, ChannelError::Slow), "{slow:?}");
        assert!(matches!(large, ("write", ChannelError::Stalled)), "{large:?}");
        assert!(matches!(small, ("flush", ChannelError::Stalled)), "{small:?}");
        quiet
    };
    let began = Instant::now();
    let quiet = timeout(Duration::from_secs(30), in_time).await.expect("none is waited for much longer than ten seconds");
    assert!(quiet.duration_since(began) >= Duration::from_secs(9), "a busy peer may be silent for a while");
}
