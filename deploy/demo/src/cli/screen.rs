//! The live screen: redrawn in place on a terminal, a line every few seconds elsewhere. All of it goes to stderr.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anabranch_demo::daemon::Status;
use anabranch_demo::verify::SpotCheck;
use anabranch_demo::{LagSummary, LiveLag, WorkloadReport};

/// Interval of lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The figures of one moment.
#[derive(Debug, Clone, Default)]
pub struct View {
    pub elapsed: Duration,
    pub changes: WorkloadReport,
    pub changes_per_second: f64,
    /// Lags by store; a line shows that of the first store.
    pub lags: Vec<StoreLag>,
    pub rows_by_database: BTreeMap<String, u64>,
    pub check: Option<SpotCheck>,
    pub checks: u64,
    /// `None` when the daemon does not answer.
    pub status: Option<Status>,
}

/// The lag of one store.
#[derive(Debug, Clone, Default)]
pub struct StoreLag {
    store: &'static str,
    all: LagSummary,
    recent: LagSummary,
    /// Number of probes on their way, and the age of the oldest.
    waiting: (usize, Duration),
}

impl StoreLag {
    pub fn of(lag: &LiveLag) -> Self {
        let (all, recent) = lag.snapshot();
        Self { store: lag.store, all, recent, waiting: lag.outstanding() }
    }
}

/// The output of views: a terminal or lines.
#[derive(Debug)]
pub struct Screen {
    is_terminal: bool,
    heading: String,
    footer: Vec<String>,
    last_line: Option<Duration>,
}

impl Screen {
    pub fn new(heading: String, footer: Vec<String>) -> Self {
        let is_terminal = io::stderr().is_terminal();
        if !is_terminal {
            say(&heading);
            footer.iter().for_each(|line| say(line));
        }
        Self { is_terminal, heading, footer, last_line: None }
    }

    pub fn show(&mut self, view: &View) {
        if self.is_terminal {
            let text = self.page(view);
            // From home, each line is cleared after its text, then the rest of the screen: the page does not flicker.
            let page = text.replace('\n', "\x1b[K\n");
            say_raw(&format!("\x1b[H{page}\x1b[J"));
        } else if self.last_line.is_none_or(|last| view.elapsed >= last + LINE_EVERY) {
            self.last_line = Some(view.elapsed);
            say(&line(view));
        }
    }

    /// Clears the terminal before the first page.
    pub fn open(&self) {
        if self.is_terminal {
            say_raw("\x1b[2J");
        }
    }

    fn page(&self, view: &View) -> String {
        let seconds = view.elapsed.as_secs();
        let mut page = format!("{}    {:02}:{:02}\n\n", self.heading, seconds / 60, seconds % 60);
        let changes = &view.changes;
        row(
            &mut page,
            "workload",
            format!("{} changes, {:.0}/s", grouped(changes.changes), view.changes_per_second),
        );
        row(
            &mut page,
            "",
            format!(
                "{} moved to another server, {} inside one, {} deleted, {} rolled back",
                grouped(
                    changes.moves_to_other_server_delete_first + changes.moves_to_other_server_insert_first
                ),
                grouped(changes.moves_inside_server_delete_first + changes.moves_inside_server_insert_first),
                grouped(changes.deletes),
                grouped(changes.rollbacks)
            ),
        );
        for (number, of) in view.lags.iter().enumerate() {
            let mut text = format!("{:<10} {:<33} last second {}", of.store, lag(&of.all), lag(&of.recent));
            let (count, oldest) = of.waiting;
            if oldest > Duration::from_secs(1) {
                write!(text, "; {count} on their way, the oldest for {:.1} s", oldest.as_secs_f64())
                    .expect("writing to a String cannot fail");
            }
            row(&mut page, if number == 0 { "lag" } else { "" }, text);
        }
        let stores: Vec<String> = view
            .rows_by_database
            .iter()
            .map(|(database, rows)| format!("{database} {}", grouped(*rows)))
            .collect();
        row(&mut page, "derived", stores.join("   "));
        row(&mut page, "check", check(view));
        page.push('\n');
        daemon_rows(&mut page, view.status.as_ref());
        page.push('\n');
        for text in &self.footer {
            writeln!(page, "  {text}").expect("writing to a String cannot fail");
        }
        page
    }
}

fn row(page: &mut String, name: &str, text: String) {
    writeln!(page, "  {name:<12} {text}").expect("writing to a String cannot fail");
}

/// Adds the rows of the daemon's sources and lanes to the page.
fn daemon_rows(page: &mut String, status: Option<&Status>) {
    let Some(status) = status else { return row(page, "daemon", "does not answer".to_owned()) };
    for source in &status.sources {
        let text = format!(
            "{:<12} lag {:>6}  position {}, {:.0} messages/s {}",
            source.state,
            seconds_text(source.lag_seconds),
            source.position.as_deref().unwrap_or("-"),
            source.messages_per_second.unwrap_or(0.0),
            source.code.as_deref().unwrap_or("")
        );
        row(page, &source.source, text);
    }
    for lane in &status.lanes {
        let text = format!(
            "{:<12} lag {:>6}  {} of {} lane {}, {:.0} rows/s {}",
            lane.state,
            seconds_text(lane.lag_seconds),
            lane.projection,
            lane.source,
            lane.lane,
            lane.rows_per_second.unwrap_or(0.0),
            lane.code.as_deref().unwrap_or("")
        );
        row(page, &lane.target, text);
    }
    for cache in &status.caches {
        let text = format!(
            "{:<12} lag {:>6}  cache of the mapping tables {}",
            cache.state,
            seconds_text(cache.delay_seconds),
            cache.code.as_deref().unwrap_or("")
        );
        row(page, &cache.cache, text);
    }
}

fn line(view: &View) -> String {
    let rows: u64 = view.rows_by_database.values().sum();
    let states: Vec<String> = match &view.status {
        None => vec!["daemon does not answer".to_owned()],
        Some(status) => {
            let sources = status.sources.iter().map(|source| format!("{} {}", source.source, source.state));
            let stopped = status.lanes.iter().filter(|lane| lane.code.is_some());
            let lanes = stopped.map(|lane| {
                format!("{} of {} lane {} {}", lane.projection, lane.source, lane.lane, lane.state)
            });
            let failing = status.caches.iter().filter(|cache| cache.code.is_some());
            let caches = failing.map(|cache| format!("{} {}", cache.cache, cache.state));
            sources.chain(lanes).chain(caches).collect()
        }
    };
    format!(
        "{:>4} s  {} changes, {:.0}/s  lag {}  {} derived  {}  {}",
        view.elapsed.as_secs(),
        grouped(view.changes.changes),
        view.changes_per_second,
        view.lags.first().map_or("-".to_owned(), |first| lag(&first.all)),
        grouped(rows),
        check(view),
        states.join(", ")
    )
}

fn lag(lag: &LagSummary) -> String {
    match lag.probes {
        0 => "-".to_owned(),
        _ => format!("p50 {:.1} ms, p99 {:.1} ms", lag.p50_ms, lag.p99_ms),
    }
}

fn check(view: &View) -> String {
    match &view.check {
        None => "not yet".to_owned(),
        Some(check) => format!(
            "{} differences in {} ({} rows, {} tables checked so far)",
            check.differences, check.table, check.rows, view.checks
        ),
    }
}

fn seconds_text(seconds: Option<f64>) -> String {
    seconds.map_or("-".to_owned(), |seconds| format!("{seconds:.1} s"))
}

/// Formats `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Prints a line for people. A closed terminal is no reason to stop a run.
pub fn say(line: &str) {
    say_raw(&format!("{line}\n"));
}

fn say_raw(text: &str) {
    let mut stderr = io::stderr().lock();
    let _closed = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_shows_what_is_known_and_that_the_daemon_is_silent() {
        let screen = Screen {
            is_terminal: true,
            heading: "Anabranch".to_owned(),
            footer: vec!["see".to_owned()],
            last_line: None,
        };
        let page = screen.page(&View { changes_per_second: 1234.0, ..View::default() });
        assert!(
            page.contains("1234/s") && page.contains("does not answer") && page.contains("see"),
            "{page}"
        );
    }

    #[test]
    fn large_numbers_are_grouped() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
