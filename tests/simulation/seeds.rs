//! Runs seeds on all processors, and reports those that failed.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Seconds without a verdict after which a seed loops without virtual time passing; a seed takes milliseconds.
const SILENCE_MAX_SECONDS: u32 = 60;
const SHOWN: usize = 10;
/// Verdicts that wait to be counted, more than there are processors.
const VERDICTS_WAITING: usize = 1024;

/// The verdict on one seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Equal,
    /// The store differs from its sources, or an invariant was broken.
    Wrong(String),
    /// It does not become equal, or a task stopped for good.
    Stuck(String),
}

/// The seeds that failed.
pub struct Outcome {
    total: usize,
    began: Instant,
    failed: Vec<(u64, Verdict)>,
}

pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number of seeds"))
}

/// Seeds that failed once, with rows or with documents: both run all of them.
pub fn kept() -> Vec<u64> {
    let lines = include_str!("seeds.txt").lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_whitespace().next())
        .map(|seed| seed.parse().expect("a seed"))
        .collect()
}

/// Runs the seeds on all processors.
pub fn run(seeds: Vec<u64>, world: impl Fn(u64) -> Verdict + Send + Sync + 'static) -> Outcome {
    let (total, began) = (seeds.len(), Instant::now());
    let waiting = Arc::new(Mutex::new(seeds.into_iter()));
    let running = Arc::new(Mutex::new(BTreeSet::new()));
    let world = Arc::new(world);
    let (sender, verdicts) = mpsc::sync_channel(VERDICTS_WAITING);
    for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
        let (waiting, running) = (waiting.clone(), running.clone());
        let (sender, world) = (sender.clone(), world.clone());
        std::thread::spawn(move || {
            let next = || waiting.lock().expect("no seed panics in here").next();
            while let Some(seed) = next() {
                running.lock().expect("as above").insert(seed);
                let verdict = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world(seed)))
                    .unwrap_or_else(|_| Verdict::Wrong("it panicked".to_owned()));
                running.lock().expect("as above").remove(&seed);
                if sender.send((seed, verdict)).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let (mut failed, mut silent) = (Vec::new(), 0);
    loop {
        // Seconds are counted one by one: a process that was stopped for an hour has been silent for one of them.
        let verdict = verdicts.recv_timeout(Duration::from_secs(1));
        silent = if verdict.is_ok() { 0 } else { silent + 1 };
        match verdict {
            Ok((_, Verdict::Equal)) => {}
            Ok(other) => failed.push(other),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) if silent < SILENCE_MAX_SECONDS => {}
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let endless = Verdict::Stuck("it never ends".to_owned());
                failed.extend(running.lock().expect("as above").iter().map(|seed| (*seed, endless.clone())));
                break;
            }
        }
    }
    failed.sort_by_key(|(seed, _)| *seed);
    Outcome { total, began, failed }
}

impl Outcome {
    /// Prints the rate, and panics with the seeds that failed after writing them to a file.
    pub fn require_success(self) {
        let is_wrong = |(_, verdict): &&(u64, Verdict)| matches!(verdict, Verdict::Wrong(_));
        let wrong = self.failed.iter().filter(is_wrong).count();
        let (total, stuck) = (self.total, self.failed.len() - wrong);
        let rate = total as f64 / self.began.elapsed().as_secs_f64();
        println!("simulation: {total} seeds, {wrong} wrong, {stuck} stuck, {rate:.0} seeds a second");
        if self.failed.is_empty() {
            return;
        }
        let mut text = String::new();
        for (seed, verdict) in &self.failed {
            let (Verdict::Wrong(why) | Verdict::Stuck(why)) = verdict else { continue };
            let kind = if matches!(verdict, Verdict::Wrong(_)) { "wrong" } else { "stuck" };
            writeln!(text, "{seed} {kind}: {why}").expect("text grows");
        }
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("simulation-failed-seeds.txt");
        std::fs::write(&file, &text).expect("the target folder can be written");
        let shown: Vec<&str> = text.lines().take(SHOWN).collect();
        panic!(
            "{} of {total} seeds failed; all are in {}:\n{}",
            self.failed.len(),
            file.display(),
            shown.join("\n")
        );
    }
}
