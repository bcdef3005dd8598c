//! `millrace engine` as its node meets it: it listens, goes on through signals, and ends with standard input.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const CONFIG: &str = r#"
[model.m]
name = "m"
path = "nowhere.gguf"

[device.d]

[pool.p]
stage = "prefill"
process = true
device = "d"
recipe = "int8"
pages = 64

[pool.q]
stage = "decode"
process = true
device = "d"
recipe = "int4"
pages = 64

[lane.l]
prefill = "p"
decode = "q"
"#;

/// A process that listens, and its standard input.
fn listening(config: &std::path::Path) -> (Child, ChildStdin) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_millrace"))
        .args(["engine", "decode", "--pool", "q", "-c"])
        .arg(config)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut stdin = child.stdin.take().expect("standard input");
    writeln!(stdin, "{} 1", "ab".repeat(32)).expect("written");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("standard output")).read_line(&mut line).expect("a line");
    assert!(line.starts_with("listening 127.0.0.1:"), "{line}");
    (child, stdin)
}

fn ended(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("a status") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

#[test]
fn signals_are_left_to_the_node_and_the_end_of_standard_input_ends_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("deploy.toml");
    std::fs::write(&config, CONFIG).expect("written");
    let (mut child, stdin) = listening(&config);
    for signal in ["-TERM", "-INT", "-TERM"] {
        let sent = Command::new("sh").arg("-c").arg(format!("kill {signal} {}", child.id())).status().expect("the shell runs");
        assert!(sent.success());
        assert_eq!(ended(&mut child, Duration::from_millis(300)), None, "{signal} ended it");
    }
    drop(stdin);
    let status = ended(&mut child, Duration::from_secs(20)).expect("it ends with its node");
    assert_eq!(status.code(), Some(0));
}
