//! Who ends a stack: its owner, however the owner ends, or `cargo stack down`.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too, fail by panicking")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anabranch_stack::{Layout, Options, ServerSpec, ServerStatus, Stack};

/// Processes whose command line names the folder, zombies excepted: servers and their watchers.
fn processes_of(folder: &Path) -> Vec<String> {
    let wanted = folder.display().to_string();
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(&wanted))
        .collect()
}

fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !reached() {
        assert!(Instant::now() < deadline, "not reached: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Not a test by itself: the owner that the next test kills.
#[test]
#[ignore = "runs only as a child of owner_killed_leaves_nothing_running"]
fn owner_that_waits() {
    let options =
        Options::empty().with(ServerSpec::mariadb_source("source-a")).with(ServerSpec::nats("nats"));
    // Started in a thread that ends: servers follow the process, not the thread.
    let stack = thread::spawn(|| Stack::start(options).unwrap()).join().unwrap();
    let script = format!("sleep 119; exit 0 # {}", stack.folder().display());
    let arguments = ["-c".to_owned(), script];
    let _companion =
        stack.companion(Path::new("sh"), &arguments, &stack.folder().join("companion.log")).unwrap();
    println!("\nowns {}", stack.name());
    thread::sleep(Duration::from_secs(120));
}

#[test]
fn owner_killed_leaves_nothing_running() {
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "owner_that_waits", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let name =
        lines.map(Result::unwrap).find_map(|line| Some(line.strip_prefix("owns ")?.to_owned())).unwrap();
    let layout = Layout::find().unwrap();
    let seen = Stack::open(&layout, &name).unwrap();
    let folder = seen.folder().to_path_buf();
    // Restarted from outside, as by `cargo stack restart`, and paused: both still end with the owner.
    seen.server("source-a").unwrap().restart().unwrap();
    seen.server("nats").unwrap().pause().unwrap();
    assert!(processes_of(&folder).len() >= 2, "{:?}", processes_of(&folder));

    owner.kill().unwrap();
    owner.wait().unwrap();

    // Both: an ending process loses its command line a moment before it is gone.
    let stopped = || seen.servers().iter().all(|server| server.status() == ServerStatus::Stopped);
    wait_until("all processes gone", || processes_of(&folder).is_empty() && stopped());
    let _next = Stack::start(Options::empty()).unwrap();
    assert!(!folder.exists(), "the next stack removes what the dead owner left");
}

/// Takes a detached stack down when a failed assertion would leave it running.
struct DownAtLast<'a>(&'a str);

impl Drop for DownAtLast<'_> {
    fn drop(&mut self) {
        if let Ok(stack) = Layout::find().and_then(|layout| Stack::open(&layout, self.0)) {
            stack.down().unwrap();
        }
    }
}

#[test]
fn detached_stack_outlives_its_starter_until_down() {
    let instance = format!("cli-{}", std::process::id());
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_stack"))
            .args(["--instance", &instance])
            .args(arguments)
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let line = |text: &str, name: &str| {
        let after = &text[text.find(&format!("stack {instance}\n")).unwrap()..];
        after.lines().find(|line| line.trim_start().starts_with(name)).unwrap().to_owned()
    };

    let _down = DownAtLast(&instance);
    let some = ["up", "source-a", "source-b", "nats"];
    let (up, servers) = run(&some);
    assert!(up, "{servers}");
    let (_, env) = run(&["env"]);
    let url = env.lines().find_map(|line| line.strip_prefix("ANABRANCH_SOURCE_A_URL=")).unwrap();
    assert!(url.starts_with("mysql://anabranch_capture:"), "{url}");
    assert!(run(&["kill", "source-b"]).0);
    assert!(line(&run(&["status"]).1, "source-b").contains("stopped"));
    assert!(run(&some).0, "up starts what does not run");
    assert!(line(&run(&["status"]).1, "source-b").contains("running"));
    assert!(run(&["pause", "nats"]).0);
    assert!(line(&run(&["status"]).1, "nats").contains("paused"));
    assert!(run(&["wipe", "source-b"]).0);
    assert!(line(&run(&["status"]).1, "source-b").contains("running"));
    assert!(!run(&["kill", "unknown"]).0);
    assert!(!run(&["up", "unknown"]).0);

    let folder = Stack::open(&Layout::find().unwrap(), &instance).unwrap().folder().to_path_buf();
    assert!(run(&["down"]).0);
    assert!(!folder.exists());
    assert_eq!(processes_of(&folder), Vec::<String>::new());
    assert!(!run(&["down"]).0, "a stack that is not up is an error");
}

#[test]
fn a_companion_tells_how_it_ended() {
    let stack = Stack::start(Options::empty()).unwrap();
    let output = stack.folder().join("companion.log");
    let start = |script: &str| {
        let script = format!("echo started; {script}");
        stack.companion(Path::new("sh"), &["-c".to_owned(), script], &output).unwrap()
    };
    let second = Duration::from_secs(1);
    let mut ended = start("exit 7");
    assert_eq!(ended.wait(10 * second).and_then(|status| status.code()), Some(7));
    let mut orderly = start("trap 'exit 0' TERM; while :; do sleep 0.05; done");
    assert!(orderly.is_running());
    wait_until("the trap is set", || fs::read_to_string(&output).unwrap().lines().count() >= 2);
    assert!(orderly.terminate(10 * second).unwrap().is_some());
    let mut deaf = start("trap '' TERM; sleep 60; sleep 60");
    wait_until("it runs", || fs::read_to_string(&output).unwrap().lines().count() >= 3);
    deaf.pause();
    assert!(deaf.terminate(second / 10).unwrap().is_none() && !deaf.is_running());
}
