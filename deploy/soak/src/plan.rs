//! The random plan: which step comes next, and how long it lasts. It does no I/O, so a seed gives the same steps again.
//!
//! Two courses run side by side: one breaks daemons, the other one servers and tables. Each draws its kinds of steps
//! like cards from a shuffled deck. The first deck has a card of each kind on top, so that a short run has every kind
//! too, and a long run has each about as often.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Longest time for which a killed daemon or server is away.
const DOWN_MAX: Duration = Duration::from_secs(5);
/// Longest pause of a server.
const SERVER_PAUSE_MAX: Duration = Duration::from_secs(8);
/// Pause of a daemon, always longer than its leases, which live for four seconds.
const DAEMON_PAUSE: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(12)];
/// Longest pause of lanes by an operator.
const LANES_PAUSE_MAX: Duration = Duration::from_secs(6);
/// Time between two steps of a course.
const GAP_MAX: Duration = Duration::from_secs(2);
/// Number that tells the generators of both courses apart.
const DAEMONS_COURSE: u64 = 0xDAE7;

/// The things that a plan may choose from.
#[derive(Debug, Clone)]
pub struct Choices {
    pub daemons: usize,
    /// Names of servers in the stack; `source-a` stays the name of the source after a fail-over.
    pub servers: Vec<&'static str>,
    /// Number of captured tables.
    pub tables: usize,
    /// Number of the first of them that have users.
    pub users: usize,
    /// Tables of users whose birthdays are text.
    pub texts: Vec<usize>,
    /// Tables of users on a server without a replica.
    pub unreplicated: Vec<usize>,
    /// Names of projections.
    pub projections: Vec<&'static str>,
    pub sources: Vec<&'static str>,
}

/// The statements of an online schema change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// pt-online-schema-change copies the table beside triggers.
    Percona,
    /// gh-ost holds a lock on the table for the last moment before it swaps the names.
    GhOst,
}

/// One step of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    KillDaemon {
        daemon: usize,
        down: Duration,
    },
    FreezeDaemon {
        daemon: usize,
        time: Duration,
    },
    KillServer {
        server: &'static str,
        down: Duration,
    },
    PauseServer {
        server: &'static str,
        time: Duration,
    },
    /// A column that is not captured is added, modified and dropped.
    AlterColumn {
        table: usize,
    },
    Swap {
        table: usize,
        tool: Tool,
    },
    Truncate {
        table: usize,
    },
    /// A partition takes the place of the table's rows, and gives them back.
    ExchangePartition {
        table: usize,
        time: Duration,
    },
    /// The captured column has the second of its configured names for a time.
    RenameColumn {
        table: usize,
        time: Duration,
    },
    /// The captured column is gone for a time, so the table does not fit.
    DropColumn {
        table: usize,
        time: Duration,
    },
    /// The captured column has a wider or narrower type for a time.
    WidenColumn {
        table: usize,
        time: Duration,
    },
    /// The captured column has another character set for a time.
    ConvertColumn {
        table: usize,
        time: Duration,
    },
    /// Tables of the pattern are made beside this one and in a new database, and dropped after a time.
    MakeTable {
        table: usize,
        time: Duration,
    },
    /// The grant on the table's database is missing for a time, in which all tables are to be read.
    LoseGrant {
        table: usize,
        time: Duration,
    },
    /// A foreign key deletes rows, and the binlog does not show them. A replica's binlog may not even show that it did.
    Cascade {
        table: usize,
    },
    /// Rows are changed by a statement that the binlog has as text.
    ChangeByText {
        table: usize,
    },
    PauseLanes {
        projection: &'static str,
        source: Option<&'static str>,
        time: Duration,
    },
    RestartAll,
    Reconcile,
    /// The replica of `source-a` takes its place.
    FailOver,
    /// `source-b` loses and changes rows that nothing reads, forgets its binlog and begins anew.
    BeginAnew,
}

impl Step {
    /// Returns the name of the step's kind, under which the summary counts it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::KillDaemon { .. } => "daemon-killed",
            Self::FreezeDaemon { .. } => "daemon-frozen",
            Self::KillServer { .. } => "server-killed",
            Self::PauseServer { .. } => "server-paused",
            Self::AlterColumn { .. } => "column-altered",
            Self::Swap { tool: Tool::Percona, .. } => "swapped-by-triggers",
            Self::Swap { tool: Tool::GhOst, .. } => "swapped-under-lock",
            Self::Truncate { .. } => "table-truncated",
            Self::ExchangePartition { .. } => "partition-exchanged",
            Self::RenameColumn { .. } => "column-renamed",
            Self::DropColumn { .. } => "column-dropped",
            Self::WidenColumn { .. } => "column-widened",
            Self::ConvertColumn { .. } => "characters-converted",
            Self::MakeTable { .. } => "table-made",
            Self::LoseGrant { .. } => "grant-lost",
            Self::Cascade { .. } => "rows-cascaded",
            Self::ChangeByText { .. } => "changed-by-text",
            Self::PauseLanes { .. } => "lanes-paused",
            Self::RestartAll => "all-restarted",
            Self::Reconcile => "reconciled",
            Self::FailOver => "failed-over",
            Self::BeginAnew => "begun-anew",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KillDaemon { daemon, down } => {
                write!(f, "kill -9 of daemon {daemon}, away for {:.1} s", down.as_secs_f64())
            }
            Self::FreezeDaemon { daemon, time } => {
                write!(f, "SIGSTOP of daemon {daemon} for {:.1} s", time.as_secs_f64())
            }
            Self::KillServer { server, down } => {
                write!(f, "kill -9 of {server}, away for {:.1} s", down.as_secs_f64())
            }
            Self::PauseServer { server, time } => {
                write!(f, "SIGSTOP of {server} for {:.1} s", time.as_secs_f64())
            }
            Self::AlterColumn { table } => write!(f, "add, modify and drop a column of table {table}"),
            Self::Swap { table, tool: Tool::Percona } => {
                write!(f, "copy table {table} beside triggers and swap the names")
            }
            Self::Swap { table, tool: Tool::GhOst } => {
                write!(f, "copy table {table} under a lock and swap the names")
            }
            Self::Truncate { table } => write!(f, "truncate table {table}"),
            Self::ExchangePartition { table, time } => {
                write!(
                    f,
                    "exchange table {table} with a partition, and back after {:.1} s",
                    time.as_secs_f64()
                )
            }
            Self::RenameColumn { table, time } => for_a_time(f, "rename birthdays of table", *table, *time),
            Self::DropColumn { table, time } => for_a_time(f, "drop birthdays of table", *table, *time),
            Self::WidenColumn { table, time } => for_a_time(f, "widen birthdays of table", *table, *time),
            Self::ConvertColumn { table, time } => for_a_time(f, "convert birthdays of table", *table, *time),
            Self::MakeTable { table, time } => for_a_time(f, "make tables as table", *table, *time),
            Self::LoseGrant { table, time } => for_a_time(f, "lose the grant of table", *table, *time),
            Self::Cascade { table } => write!(f, "delete rows of table {table} by a foreign key"),
            Self::ChangeByText { table } => write!(f, "change rows of table {table} by text"),
            Self::PauseLanes { projection, source, time } => {
                let source = source.map_or(String::new(), |source| format!(" of {source}"));
                write!(f, "pause {projection}{source}, resume after {:.1} s", time.as_secs_f64())
            }
            Self::RestartAll => f.write_str("restart --all"),
            Self::Reconcile => f.write_str("reconcile --now"),
            Self::FailOver => f.write_str("fail over from source-a to its replica"),
            Self::BeginAnew => f.write_str("source-b loses rows and its binlog, begin-anew"),
        }
    }
}

/// Writes a change of a table that is taken back.
fn for_a_time(f: &mut fmt::Formatter<'_>, what: &str, table: usize, time: Duration) -> fmt::Result {
    write!(f, "{what} {table}, and back after {:.1} s", time.as_secs_f64())
}

/// A kind of step without its details.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Card {
    KillDaemon,
    FreezeDaemon,
    KillServer,
    PauseServer,
    AlterColumn,
    Percona,
    GhOst,
    Truncate,
    ExchangePartition,
    RenameColumn,
    DropColumn,
    WidenColumn,
    ConvertColumn,
    MakeTable,
    LoseGrant,
    Cascade,
    ChangeByText,
    PauseLanes,
    RestartAll,
    Reconcile,
    FailOver,
    BeginAnew,
}

const OF_DAEMONS: [Card; 3] = [Card::KillDaemon, Card::KillDaemon, Card::FreezeDaemon];
/// A kind that stands here more than once comes more often.
const OF_GROUND: [Card; 23] = [
    Card::KillServer,
    Card::KillServer,
    Card::KillServer,
    Card::PauseServer,
    Card::PauseServer,
    Card::AlterColumn,
    Card::Percona,
    Card::GhOst,
    Card::Truncate,
    Card::ExchangePartition,
    Card::RenameColumn,
    Card::DropColumn,
    Card::WidenColumn,
    Card::ConvertColumn,
    Card::MakeTable,
    Card::LoseGrant,
    Card::Cascade,
    Card::ChangeByText,
    Card::PauseLanes,
    Card::RestartAll,
    Card::Reconcile,
    Card::FailOver,
    Card::BeginAnew,
];

/// The steps of one course, without an end.
#[derive(Debug)]
pub struct Plan {
    choices: Choices,
    random: StdRng,
    cards: Vec<Card>,
    deck: Vec<Card>,
    /// Kinds that were not drawn yet.
    owed: Vec<Card>,
    has_failed_over: bool,
}

impl Plan {
    /// Returns the course that breaks daemons.
    pub fn of_daemons(seed: u64, choices: Choices) -> Self {
        Self::new(seed ^ DAEMONS_COURSE, choices, OF_DAEMONS.to_vec())
    }

    /// Returns the course that breaks servers and changes tables.
    pub fn of_ground(seed: u64, choices: Choices) -> Self {
        Self::new(seed, choices, OF_GROUND.to_vec())
    }

    fn new(seed: u64, choices: Choices, cards: Vec<Card>) -> Self {
        let random = StdRng::seed_from_u64(seed);
        let owed = cards.clone();
        Self { choices, random, cards, deck: Vec::new(), owed, has_failed_over: false }
    }

    /// Whether a kind of step was not drawn yet.
    pub fn owes_a_kind(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Returns the next step, and the time to wait before it.
    pub fn draw(&mut self) -> (Duration, Step) {
        let gap = self.up_to(GAP_MAX);
        let card = self.card();
        (gap, self.step(card))
    }

    fn card(&mut self) -> Card {
        loop {
            if self.deck.is_empty() {
                self.deck.clone_from(&self.cards);
                for last in (1..self.deck.len()).rev() {
                    let chosen = self.random.random_range(0..=last);
                    self.deck.swap(last, chosen);
                }
                if self.owed == self.cards {
                    self.deck = each_kind_on_top(&self.deck);
                }
            }
            match self.deck.pop() {
                // A source has one replica.
                Some(Card::FailOver) if self.has_failed_over => {}
                Some(card) => {
                    self.owed.retain(|owed| *owed != card);
                    return card;
                }
                None => unreachable!("a deck has cards"),
            }
        }
    }

    fn step(&mut self, card: Card) -> Step {
        match card {
            Card::KillDaemon => Step::KillDaemon { daemon: self.daemon(), down: self.up_to(DOWN_MAX) },
            Card::FreezeDaemon => {
                let [least, most] = DAEMON_PAUSE;
                Step::FreezeDaemon { daemon: self.daemon(), time: least + self.up_to(most - least) }
            }
            Card::KillServer => Step::KillServer { server: self.server(), down: self.up_to(DOWN_MAX) },
            Card::PauseServer => {
                Step::PauseServer { server: self.server(), time: self.up_to(SERVER_PAUSE_MAX) }
            }
            Card::AlterColumn => Step::AlterColumn { table: self.table() },
            Card::Percona => Step::Swap { table: self.table(), tool: Tool::Percona },
            Card::GhOst => Step::Swap { table: self.table(), tool: Tool::GhOst },
            Card::Truncate => Step::Truncate { table: self.table() },
            Card::ExchangePartition => {
                Step::ExchangePartition { table: self.table(), time: self.up_to(GAP_MAX) }
            }
            Card::RenameColumn => Step::RenameColumn { table: self.users(), time: self.up_to(GAP_MAX) },
            Card::DropColumn => Step::DropColumn { table: self.users(), time: self.up_to(GAP_MAX) },
            Card::WidenColumn => Step::WidenColumn { table: self.users(), time: self.up_to(GAP_MAX) },
            Card::ConvertColumn => Step::ConvertColumn { table: self.text(), time: self.up_to(GAP_MAX) },
            Card::MakeTable => Step::MakeTable { table: self.users(), time: self.up_to(GAP_MAX) },
            Card::LoseGrant => Step::LoseGrant { table: self.unreplicated(), time: self.up_to(GAP_MAX) },
            Card::Cascade => Step::Cascade { table: self.unreplicated() },
            Card::ChangeByText => Step::ChangeByText { table: self.users() },
            Card::PauseLanes => self.pause_of_lanes(),
            Card::RestartAll => Step::RestartAll,
            Card::Reconcile => Step::Reconcile,
            Card::FailOver => {
                self.has_failed_over = true;
                Step::FailOver
            }
            Card::BeginAnew => Step::BeginAnew,
        }
    }

    fn pause_of_lanes(&mut self) -> Step {
        let projection =
            self.choices.projections[self.random.random_range(0..self.choices.projections.len())];
        let source = self.choices.sources[self.random.random_range(0..self.choices.sources.len())];
        let source = self.random.random_bool(0.5).then_some(source);
        Step::PauseLanes { projection, source, time: self.up_to(LANES_PAUSE_MAX) }
    }

    fn daemon(&mut self) -> usize {
        self.random.random_range(0..self.choices.daemons)
    }

    fn table(&mut self) -> usize {
        self.random.random_range(0..self.choices.tables)
    }

    /// Returns a table of users.
    fn users(&mut self) -> usize {
        self.random.random_range(0..self.choices.users)
    }

    /// Returns a table of users whose birthdays are text.
    fn text(&mut self) -> usize {
        self.choices.texts[self.random.random_range(0..self.choices.texts.len())]
    }

    /// Returns a table of users on a server without a replica.
    fn unreplicated(&mut self) -> usize {
        self.choices.unreplicated[self.random.random_range(0..self.choices.unreplicated.len())]
    }

    fn server(&mut self) -> &'static str {
        self.choices.servers[self.random.random_range(0..self.choices.servers.len())]
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_millis()).expect("a step lasts for seconds");
        Duration::from_millis(self.random.random_range(0..=most))
    }
}

/// Returns the cards with one of each kind at the end, from which they are drawn.
fn each_kind_on_top(deck: &[Card]) -> Vec<Card> {
    let (mut below, mut top) = (Vec::new(), Vec::new());
    for card in deck {
        let part = if top.contains(card) { &mut below } else { &mut top };
        part.push(*card);
    }
    below.append(&mut top);
    below
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn choices() -> Choices {
        Choices {
            daemons: 3,
            servers: vec!["source-a", "source-b", "target"],
            tables: 20,
            users: 10,
            texts: vec![2, 7],
            unreplicated: vec![5, 6, 7, 8, 9],
            projections: vec!["birthday", "mapping"],
            sources: vec!["source-a", "source-b"],
        }
    }

    fn steps(mut plan: Plan, count: usize) -> Vec<(Duration, Step)> {
        (0..count).map(|_| plan.draw()).collect()
    }

    #[test]
    fn a_seed_gives_the_same_steps_again_and_another_seed_others() {
        let of = |seed| steps(Plan::of_ground(seed, choices()), 50);
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }

    #[test]
    fn each_kind_comes_before_any_comes_again_and_a_run_fails_over_once() {
        for seed in 0..50 {
            for (mut plan, count) in
                [(Plan::of_ground(seed, choices()), 20), (Plan::of_daemons(seed, choices()), 2)]
            {
                let mut kinds = BTreeSet::new();
                while plan.owes_a_kind() {
                    let (_, step) = plan.draw();
                    assert!(kinds.insert(step.kind()), "{step} came again first, seed {seed}");
                }
                assert_eq!(kinds.len(), count, "{kinds:?}");
            }
        }
        let of_ground = steps(Plan::of_ground(3, choices()), 200);
        let fail_overs = of_ground.iter().filter(|(_, step)| *step == Step::FailOver).count();
        assert_eq!(fail_overs, 1);
    }

    #[test]
    fn a_frozen_daemon_sleeps_longer_than_its_leases_live() {
        for (_, step) in steps(Plan::of_daemons(5, choices()), 100) {
            match step {
                Step::FreezeDaemon { time, .. } => assert!(time > Duration::from_secs(4), "{time:?}"),
                Step::KillDaemon { down, .. } => assert!(down <= DOWN_MAX),
                other => panic!("no step of a daemon: {other}"),
            }
        }
    }
}
