//! Pieces of a buffer on their way to the host: in stream order, byte for byte, each taken once.

use millrace_ops::{Download, HostPieces, Op, Upload};

use super::Rig;
use super::invalid::refused;

pub(crate) fn suite(rig: &mut Rig<'_>) {
    for (count, piece_bytes) in [(1, 1), (3, 1000), (16, 4096)] {
        in_stream_order(rig, count, piece_bytes);
    }
    beyond_the_buffer(rig);
}

fn random_bytes(rig: &mut Rig<'_>, count: usize) -> Vec<u8> {
    (0..count).map(|_| rig.random.bits() as u8).collect()
}

/// What is written before a download is in it, what is written behind it is not, nor what lies behind the last piece.
fn in_stream_order(rig: &mut Rig<'_>, count: usize, piece_bytes: usize) {
    let whole = count * piece_bytes + 13;
    let (first, second) = (random_bytes(rig, whole), random_bytes(rig, whole));
    let from = rig.empty(whole);
    let (early, late) = (HostPieces::new(count), HostPieces::new(count));
    let write = |bytes: &[u8]| Op::Upload(Upload { to: from.clone(), offset: 0, bytes: bytes.to_vec() });
    let download = |to: &HostPieces| Op::Download(Download { from: from.clone(), piece_bytes, to: to.clone() });
    rig.run([write(&first), download(&early), write(&second), download(&late)]);
    for (pieces, bytes) in [(&early, &first), (&late, &second)] {
        assert_eq!(pieces.count(), count);
        for (piece, want) in bytes.chunks_exact(piece_bytes).take(count).enumerate() {
            assert_eq!(pieces.take(piece), want, "piece {piece} of {count}");
            assert!(pieces.take(piece).is_empty(), "it was taken");
        }
        assert!(pieces.take(count).is_empty());
    }
}

fn beyond_the_buffer(rig: &mut Rig<'_>) {
    let from = rig.empty(64);
    for (what, count, piece_bytes) in [("one piece", 1, 65), ("the last", 3, 22), ("the product", 2, usize::MAX)] {
        let to = HostPieces::new(count);
        refused(rig, what, [Op::Download(Download { from: from.clone(), piece_bytes, to: to.clone() })]);
        assert!(to.take(0).is_empty(), "{what}");
    }
}
