//! The counters of payment documents: numbers are leased once, and a counter that went back is refused by name.

use std::collections::BTreeSet;

use anabranch_connectors::memory::{MemoryRegisters, MemorySequence, Weather};
use anabranch_connectors::mysql::sequence::MysqlSequence;
use anabranch_pipeline::config::{Config, FluxIdentifierConfig};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::identifiers::flux::{
    CapturedNumbers, FluxIssuer, FluxOrder, FluxSettings, VERSION, raise, state,
};
use anabranch_pipeline::ports::{Register, Registers, Sequence};
use anabranch_pipeline::records::{
    GivenOnce, NumberRange, RangeRefusal, RangeRequest, Remembered, RequestKey, SequenceServer,
};
use anabranch_schemas::flux::counter::{Counter, Ring};
use anabranch_schemas::flux::id::{FluxId, Region, SEQUENCES, Side};
use anabranch_schemas::flux::placement::Kind;
use futures::future::join_all;
use jiff::ToSpan;
use jiff::civil::{Date, date};

use crate::derived::StoreSite;
use crate::source::DatabaseKind;

const TWINS_TODAY: Date = date(2026, 11, 26);
const KEYS_MAX: usize = 10;
const SETTINGS: FluxSettings = FluxSettings { region: Region::UnitedStates, system: 31 };

pub trait Ground {
    type Sequence: Sequence + Clone + 'static;

    async fn start() -> Self;
    /// The sequence of one process.
    fn process(&self) -> Self::Sequence;
    /// Sets a counter's row to another number; `None` removes the row.
    async fn set(&self, counter: Counter, next: Option<u32>);
    /// Makes every key this number of days older.
    async fn age_keys(&self, days: i32);
}

pub struct Twin(MemorySequence);

impl Ground for Twin {
    type Sequence = MemorySequence;

    async fn start() -> Self {
        Self(MemorySequence::new(Region::UnitedStates, TWINS_TODAY, (KEYS_MAX, 7), Weather::calm()))
    }

    fn process(&self) -> MemorySequence {
        self.0.clone()
    }

    async fn set(&self, counter: Counter, next: Option<u32>) {
        self.0.with(|state| {
            let place = (counter.ring, counter.slot());
            match (next, state.rows.get_mut(&place)) {
                (Some(next), Some(row)) => row.next = next,
                _ => drop(state.rows.remove(&place)),
            }
        });
    }

    async fn age_keys(&self, days: i32) {
        self.0.with(|state| {
            for (.., asked) in &mut state.keys {
                *asked = asked.checked_sub(days.days()).unwrap();
            }
        });
    }
}

/// A server with the documented accounts.
pub struct Server {
    pub site: StoreSite,
    pub config: FluxIdentifierConfig,
}

/// The documented grants, for a database of this test.
fn grants(database: &str, password: &str) -> Vec<String> {
    const GRANTS: &str = include_str!("../../../deploy/grants/mariadb-flux-sequence.sql");
    const OF_MYSQL: &str = include_str!("../../../deploy/grants/mysql-flux-sequence.sql");
    let lines =
        |text: &str| text.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join(" ");
    assert_eq!(lines(GRANTS), lines(OF_MYSQL), "both kinds of server grant the same");
    let text = lines(GRANTS)
        .replace("{client_host}", "127.0.0.1")
        .replace("{setup_password}", password)
        .replace("{sequence_password}", password)
        .replace("`flux\\_sequence`", &format!("`{database}`"))
        .replace("`flux_sequence`", &format!("`{database}`"));
    text.split(';').map(str::trim).filter(|grant| !grant.is_empty()).map(str::to_owned).collect()
}

impl Server {
    pub async fn further(kind: DatabaseKind) -> Option<Self> {
        Some(Self::on(StoreSite::further(kind).await?).await)
    }

    pub async fn on(site: StoreSite) -> Self {
        let server = site.stack.server("target-a").unwrap();
        let database = format!("{}_flux", site.prefix);
        for grant in grants(&database, server.password()) {
            site.sql(grant).await;
        }
        let account =
            |user: &str| format!("mysql://{user}:{}@127.0.0.1:{}", server.password(), server.port());
        let text = format!(
            "name = \"test\"\n[log]\nurl = \"tls://u:p@127.0.0.1:1\"\n[[entities]]\nentity = \"user\"\n\
             tables = \"user_{{db:02}}.user_{{table:03}}\"\n[[sources]]\nname = \"a\"\nurl = \"mysql://u:p@127.0.0.1:2\"\n\
             [flux]\nregion = \"us\"\nsequence_url = \"{}\"\nsequence_setup_url = \"{}\"\nsequence_ca_file = \"{}\"\n\
             sequence_database = \"{database}\"\nrequest_keys_max = {KEYS_MAX}\n",
            account("anabranch_sequence"),
            account("anabranch_sequence_setup"),
            site.stack.ca_file().display(),
        );
        let config = Config::parse(&text).unwrap().flux_identifiers().unwrap().clone();
        let made = MysqlSequence::new(&config).setup().await.unwrap();
        assert_eq!((made.databases, made.tables), (1, 101));
        Self { site, config }
    }

    pub fn table(&self, counter: Counter) -> String {
        format!("`{}`.flux_sequence_{:02}", self.config.database, counter.ring.partition())
    }
}

impl Ground for Server {
    type Sequence = MysqlSequence;

    async fn start() -> Self {
        Self::further(DatabaseKind::MariaDb).await.unwrap()
    }

    fn process(&self) -> MysqlSequence {
        MysqlSequence::new(&self.config)
    }

    async fn set(&self, counter: Counter, next: Option<u32>) {
        let (table, ring, slot) = (self.table(counter), counter.ring, counter.slot());
        let row = format!("region = {} AND side = {} AND slot = {slot}", ring.region(), ring.side());
        let sql = match next {
            Some(next) => format!("UPDATE {table} SET next = {next} WHERE {row}"),
            None => format!("DELETE FROM {table} WHERE {row}"),
        };
        self.site.sql(sql).await;
    }

    async fn age_keys(&self, days: i32) {
        let table = format!("`{}`.flux_request", self.config.database);
        self.site.sql(format!("UPDATE {table} SET asked_at = asked_at - INTERVAL {days} DAY")).await;
    }
}

on_twin_and_both_kinds_of_server!(Twin, Server:
    processes_that_lease_at_once_share_nothing,
    each_refusal_says_why_and_changes_nothing,
    a_key_stands_for_what_was_stored_first_and_there_are_not_too_many,
    processes_give_out_each_identifier_once_and_a_restart_skips,
    a_server_that_went_back_is_refused_by_name_until_numbers_are_skipped,
    a_server_that_changed_is_refused_by_name_until_a_person_accepts_it,
);

fn ring(partition: u8) -> Ring {
    Ring::new(Region::UnitedStates, Side::Main, partition).unwrap()
}

fn request(server: &SequenceServer, counter: Counter, wanted: u32) -> RangeRequest {
    RangeRequest { counter, server: server.name.clone(), known: 0, least: 1, wanted }
}

async fn processes_that_lease_at_once_share_nothing(ground: impl Ground) {
    let processes = [ground.process(), ground.process(), ground.process()];
    let server = processes[0].server().await.unwrap();
    let counter = ring(7).on(server.today);
    let ranges = (0..60).map(|place| {
        let (process, request) = (processes[place % 3].clone(), request(&server, counter, 5));
        async move { process.next_range(&request).await.unwrap().unwrap() }
    });
    let ranges: Vec<NumberRange> = join_all(ranges).await;
    let numbers: BTreeSet<u32> = ranges.iter().flat_map(|range| range.first..range.end()).collect();
    assert_eq!(numbers, (0..300).collect(), "none twice, and none left out");
    // Another partition, another side, another day and another region have counters of their own.
    let others = [
        ring(8).on(server.today),
        Ring::new(Region::UnitedStates, Side::FailOver, 7).unwrap().on(server.today),
        ring(7).on(server.today.yesterday().unwrap()),
    ];
    for other in others {
        let range = processes[1].next_range(&request(&server, other, 5)).await.unwrap();
        assert_eq!(range, Ok(NumberRange { first: 0, count: 5 }), "{other}");
    }
    let status = processes[2].status().await.unwrap();
    let mut status = status.counters;
    status.sort_unstable();
    let mut expected = vec![(counter, 300)];
    expected.extend(others.map(|other| (other, 5)));
    expected.sort_unstable();
    assert_eq!(status, expected);
}

async fn each_refusal_says_why_and_changes_nothing(ground: impl Ground) {
    let sequence = ground.process();
    let server = sequence.server().await.unwrap();
    let counter = ring(0).on(server.today);
    let day = |days: i32| server.today.checked_add(days.days()).unwrap();
    let range = async |request: RangeRequest| sequence.next_range(&request).await.unwrap();
    assert_eq!(range(request(&server, counter, 10)).await, Ok(NumberRange { first: 0, count: 10 }));

    let foreign = RangeRequest { server: "mysql:x".to_owned(), ..request(&server, counter, 10) };
    assert_eq!(range(foreign).await, Err(RangeRefusal::ServerChanged { found: server.name.clone() }));
    let ahead = RangeRequest { known: 11, ..request(&server, counter, 10) };
    assert_eq!(range(ahead).await, Err(RangeRefusal::Lagging { next: 10 }));
    for days in [-10, 3, 400] {
        let refused = range(request(&server, ring(0).on(day(days)), 10)).await;
        assert_eq!(refused, Err(RangeRefusal::OtherDay { today: server.today }), "{days}");
    }
    assert_eq!(range(request(&server, counter, 10)).await, Ok(NumberRange { first: 10, count: 10 }));

    // After a clock has stepped back, that day's counter goes on after its leased numbers; a later day has its own.
    assert_eq!(range(request(&server, ring(0).on(day(1)), 3)).await, Ok(NumberRange { first: 0, count: 3 }));
    assert_eq!(range(request(&server, counter, 10)).await, Ok(NumberRange { first: 20, count: 10 }));
    assert_eq!(range(request(&server, ring(0).on(day(1)), 3)).await, Ok(NumberRange { first: 3, count: 3 }));
    let taken = sequence.raise(&[(ring(0).on(day(-9)), 7), (ring(0).on(day(7)), 5)]).await;
    taken.unwrap();
    let overtaken = range(request(&server, ring(0).on(day(-9)), 1)).await;
    assert_eq!(overtaken, Err(RangeRefusal::Overtaken { by: day(7) }));

    ground.set(counter, Some(SEQUENCES - 4)).await;
    let five = RangeRequest { least: 5, ..request(&server, counter, 10) };
    assert_eq!(range(five).await, Err(RangeRefusal::Exhausted { next: SEQUENCES - 4 }));
    let last = range(request(&server, counter, 10)).await;
    assert_eq!(last, Ok(NumberRange { first: SEQUENCES - 4, count: 4 }));
    assert_eq!(range(request(&server, counter, 10)).await, Err(RangeRefusal::Exhausted { next: SEQUENCES }));
    sequence.raise(&[(counter, 5)]).await.unwrap();
    assert_eq!(range(request(&server, counter, 10)).await, Err(RangeRefusal::Exhausted { next: SEQUENCES }));

    ground.set(counter, None).await;
    assert_eq!(range(request(&server, counter, 10)).await, Err(RangeRefusal::Missing));
    sequence.raise(&[(counter, 5)]).await.unwrap();
    assert_eq!(range(request(&server, counter, 10)).await, Err(RangeRefusal::Missing), "nobody makes it");
}

async fn a_key_stands_for_what_was_stored_first_and_there_are_not_too_many(ground: impl Ground) {
    let (one, two) = (ground.process(), ground.process());
    let given = |sequence: u32| {
        let first: FluxId = "2016060611031103099052400029904".parse().unwrap();
        GivenOnce { first: first.with_sequence(sequence).unwrap(), count: 3 }
    };
    let key = |number: usize| RequestKey::of(format!("payment {number}").as_bytes());
    assert_eq!(one.given(&key(0)).await.unwrap(), None);
    let (first, second) = (given(1), given(2));
    let (key_0, key_0_again) = (key(0), key(0));
    let stored = tokio::join!(one.remember(&key_0, &first), two.remember(&key_0_again, &second));
    let stands = one.given(&key(0)).await.unwrap().unwrap();
    assert_eq!(
        (stored.0.unwrap(), stored.1.unwrap()),
        (Remembered::Existing(stands), Remembered::Existing(stands))
    );
    assert!([first, second].contains(&stands));
    for number in 1..KEYS_MAX - 1 {
        assert_eq!(
            one.remember(&key(number), &given(9)).await.unwrap(),
            Remembered::Existing(given(9)),
            "{number}"
        );
    }
    // There is room for one more key, if the server counts a key that came twice at once only once.
    let full_of_three = async || {
        let mut full = 0;
        for number in KEYS_MAX..KEYS_MAX + 3 {
            let stored = one.remember(&key(number), &given(9)).await.unwrap();
            full += usize::from(stored == Remembered::Full);
        }
        full
    };
    assert!(full_of_three().await >= 2, "keys are bounded");
    assert_eq!(
        two.remember(&key(0), &given(9)).await.unwrap(),
        Remembered::Existing(stands),
        "a known key is answered"
    );
    assert!(one.status().await.unwrap().keys >= KEYS_MAX as u64 - 1);

    ground.age_keys(6).await;
    assert!(full_of_three().await >= 2, "a key is kept for a week");
    ground.age_keys(2).await;
    assert_eq!(one.remember(&key(50), &given(9)).await.unwrap(), Remembered::Existing(given(9)));
    assert_eq!(one.given(&key(1)).await.unwrap(), None, "those that were old enough are gone");
}

fn recharge(partition: u8, count: u32) -> FluxOrder {
    FluxOrder {
        kind: Kind::Recharge,
        parent: None,
        partition: Some(partition),
        is_failed_over: false,
        date: None,
        version: VERSION,
        business: 1,
        reserved: 0,
        count,
    }
}

async fn processes_give_out_each_identifier_once_and_a_restart_skips(ground: impl Ground) {
    let registers = MemoryRegisters::new(Weather::calm());
    let today = ground.process().server().await.unwrap().today;
    let process = || FluxIssuer::new(ground.process(), SETTINGS);
    let mut given = BTreeSet::new();
    let mut keep = |identifiers: Vec<FluxId>| {
        for id in identifiers {
            assert!(given.insert(id.to_string()), "{id} was given out twice");
        }
    };
    let (one, two) = (process(), process());
    for count in [1, 999, 1, 2_500, 10_000, 3] {
        for issuer in [&one, &two] {
            let issued = issuer.issue(&registers, &recharge(7, count), today).await.unwrap();
            assert_eq!(issued.len(), count as usize);
            keep(issued);
        }
    }
    let racing = (0..40).map(|place| {
        let (issuer, registers) = (if place % 2 == 0 { &one } else { &two }, &registers);
        async move { issuer.issue(registers, &recharge(7, 700), today).await.unwrap() }
    });
    join_all(racing).await.into_iter().for_each(&mut keep);
    drop(one);
    // A restart, and a clock that is a day late.
    for day in [today, today.yesterday().unwrap(), today] {
        keep(process().issue(&registers, &recharge(7, 2_000), day).await.unwrap());
    }

    let at_once = RequestKey::of(b"payment 6");
    let six = recharge(6, 30);
    let (first, second) = tokio::join!(two.issue_once(&registers, &at_once, &six, today), async {
        process().issue_once(&registers, &at_once, &six, today).await
    });
    let first = first.unwrap();
    assert_eq!(second.unwrap(), first, "what stands with the key");
    keep(first);

    let key = RequestKey::of(b"payment 7");
    let order = recharge(7, 300);
    let once = async |issuer: &FluxIssuer<_>, order: &FluxOrder, day| {
        issuer.issue_once(&registers, &key, order, day).await
    };
    let first = once(&two, &order, today).await.unwrap();
    let numbers: Vec<u32> = first.iter().map(|id| id.parts().sequence).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "in a row");
    assert_eq!(once(&process(), &order, today.tomorrow().unwrap()).await.unwrap(), first, "after midnight");
    keep(first);
    let fault = once(&two, &recharge(8, 300), today).await.unwrap_err();
    assert_eq!(fault.code(), Code::KeyReused, "{fault}");
    keep(two.issue(&registers, &order, today).await.unwrap());
}

fn describe(outcome: Result<Vec<FluxId>, Fault>, code: Code) -> String {
    let fault = outcome.unwrap_err();
    assert_eq!(fault.code(), code, "{fault}");
    fault.to_string()
}

async fn a_server_that_went_back_is_refused_by_name_until_numbers_are_skipped(ground: impl Ground) {
    let registers = MemoryRegisters::new(Weather::calm());
    let sequence = ground.process();
    let today = sequence.server().await.unwrap().today;
    let process = || FluxIssuer::new(ground.process(), SETTINGS);
    let issue = async |partition| process().issue(&registers, &recharge(partition, 5), today).await;
    let mut given: BTreeSet<String> = texts(issue(7).await.unwrap());
    given.extend(texts(issue(7).await.unwrap()));
    // The server is restored from an earlier copy.
    ground.set(ring(7).on(today), Some(1_000)).await;
    let fault = describe(issue(7).await, Code::FluxSequenceLagging);
    assert!(fault.contains("its next number is 1000, and numbers up to 2000 were given out"), "{fault}");
    assert!(fault.contains("flux sequence raise"), "{fault}");
    assert_eq!(issue(8).await.unwrap().len(), 5, "other counters go on");
    // A row of yesterday's copy counts for another day.
    ground.set(ring(7).on(today), Some(0)).await;
    describe(issue(7).await, Code::FluxSequenceLagging);
    ground.set(ring(9).on(today), None).await;
    describe(issue(9).await, Code::FluxSequenceLagging);
    let later = state(&registers, &sequence, Region::UnitedStates).await.unwrap();
    assert_eq!(later.lagging_counters(), [(ring(7).on(today), 0, 2_000)]);
    assert_eq!(later.faults().len(), 1);

    let raised = raise(&registers, &sequence, Region::UnitedStates, 10_000).await.unwrap();
    assert!(raised.first < today && raised.last > today && raised.counters == 2_200, "{raised:?}");
    let after = issue(7).await.unwrap();
    assert_eq!(after[0].parts().sequence, 12_000, "above all that is known, and so many more");
    assert!(texts(after).is_disjoint(&given));
    let left = state(&registers, &sequence, Region::UnitedStates).await.unwrap().lagging_counters();
    assert!(left.iter().all(|(counter, ..)| counter.ring == ring(9)), "only the row that is gone: {left:?}");

    // Numbers that only a captured row has, and that were never leased here, are known too.
    let odd = Counter::of(&issue(6).await.unwrap()[0]);
    let captured = CapturedNumbers::new(SETTINGS);
    captured.add(vec![(odd, 50_000_001), (odd, 7), (ring(8).on(today), 1)]);
    assert_eq!(captured.recorded_beside(&registers, async { "ended" }).await, "ended");
    assert_eq!(issue(8).await.unwrap().len(), 5, "a lower number raises nothing");
    let fault = describe(issue(6).await, Code::FluxSequenceLagging);
    assert!(fault.contains("numbers up to 50000001 were given out"), "{fault}");

    // A counter that is used up is refused by name, and the next day has another one.
    let full = ring(4).on(today);
    issue(4).await.unwrap();
    sequence.raise(&[(full, SEQUENCES - 3)]).await.unwrap();
    let fault = describe(issue(4).await, Code::FluxSequenceExhausted);
    assert!(fault.contains("3 of its 100000000 numbers are left, and 5 are wanted"), "{fault}");
    let last = process().issue(&registers, &recharge(4, 3), today).await.unwrap();
    assert_eq!(last[2].parts().sequence, SEQUENCES - 1);
    describe(issue(4).await, Code::FluxSequenceExhausted);
    let tomorrow = FluxOrder { date: Some(today.tomorrow().unwrap()), ..recharge(4, 5) };
    process().issue(&registers, &tomorrow, today).await.unwrap();
}

fn texts(identifiers: Vec<FluxId>) -> BTreeSet<String> {
    identifiers.iter().map(FluxId::to_string).collect()
}

async fn a_server_that_changed_is_refused_by_name_until_a_person_accepts_it(ground: impl Ground) {
    let registers = MemoryRegisters::new(Weather::calm());
    let sequence = ground.process();
    let server = sequence.server().await.unwrap();
    let issue = async || {
        FluxIssuer::new(ground.process(), SETTINGS).issue(&registers, &recharge(7, 5), server.today).await
    };
    let before = Register::default();
    registers.compare_and_set("flux/server", &before, "mariadb:99".to_owned()).await.unwrap();
    let fault = describe(issue().await, Code::FluxServerChanged);
    assert!(fault.contains(&server.name) && fault.contains("mariadb:99"), "{fault}");
    let faults = state(&registers, &sequence, Region::UnitedStates).await.unwrap().faults();
    assert_eq!(faults[0].code(), Code::FluxServerChanged);
    assert_eq!(sequence.status().await.unwrap().counters, [], "nothing was used up");
    raise(&registers, &sequence, Region::UnitedStates, 1).await.unwrap();
    assert_eq!(issue().await.unwrap()[0].parts().sequence, 1);

    // A log that lost its registers accepts the server as it is: its counters know all numbers.
    registers.wipe();
    assert_eq!(issue().await.unwrap()[0].parts().sequence, 1_001);
}
