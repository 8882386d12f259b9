//! Tables of payment documents that left their source before they were due: a person or a job dropped or emptied
//! them past `flux retention check`. The source has no row left that says the age, so the newest row of the index says
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_pipeline::config::Config;
use anabranch_pipeline::metrics as names;
use anabranch_schemas::change::{Entity, TableIdentity};
use anabranch_schemas::flux::audit::TablePlace;
use anabranch_schemas::shard::ShardId;
use metrics::counter;
use serde::Serialize;
use tokio::time::Instant;

use super::age::{TableState, state};
use crate::wiring::{DerivedStore, Newest, RetiredDocument, RetiredTable, Wiring};

/// Days after which the task does not ask for a retirement any more. A daemon that starts counts those of this time
/// again.
const DAYS: u32 = 2;
/// Faults of a target after which it is not asked for hidden rows any more: each may take ten seconds.
const FAULTS_MAX: u32 = 3;
/// Time from the start of a process to its first count, longer than the interval of any scrape: an increase is seen
/// only from a value that was scraped before it.
const FIRST_AFTER: Duration = Duration::from_secs(300);
/// Time from one count to the next.
const EVERY: Duration = Duration::from_secs(3600);

/// A table that left too early, and whose rows stand in the index.
#[derive(Debug, Serialize)]
pub struct EarlyTable {
    pub source: String,
    pub table: String,
    /// Day on which a lane passed its removal, as YYYY-MM-DD in UTC.
    pub retired_on: String,
    pub why: String,
    #[serde(skip)]
    retirement: (ShardId, u64),
}

/// The judgement of the tables that left.
#[derive(Debug, Default)]
pub struct Judged {
    /// The tables that left too early, by source and name.
    pub early: Vec<EarlyTable>,
    /// A sentence for each table whose age nothing says, and for each target that did not answer.
    pub unknown: Vec<String>,
}

/// Judges the tables that left within so many days, or at any time. A fault costs the tables that it concerns.
pub async fn early_tables(wiring: &Wiring, stores: &[DerivedStore], days: Option<u32>) -> Judged {
    let (config, mut judged) = (wiring.config(), Judged::default());
    // Several lanes own rows of one table: the newest of all of them counts.
    let mut newest: BTreeMap<(ShardId, u64), NewestOfAll> = BTreeMap::new();
    for store in stores {
        let documents = match store.newest_retired(days).await {
            Ok(documents) => documents,
            Err(fault) => {
                judged.unknown.push(format!("a target did not say the age of retired tables: {fault}"));
                continue;
            }
        };
        let mut faults = 0;
        for document in documents {
            if own_place(config, &document.table).is_none() {
                continue;
            }
            let found = match document.newest {
                Newest::Hidden if faults < FAULTS_MAX => store.newest_hidden(&document).await,
                ref newest => Ok(newest.clone()),
            };
            let found = found.unwrap_or_else(|fault| {
                faults += 1;
                let table = &document.table.table;
                tracing::warn!(%fault, table, "a retired table could not be asked for its age");
                Newest::Hidden
            });
            let retirement = (document.table.shard, document.position);
            newest.entry(retirement).or_insert_with(|| NewestOfAll::new(document)).add(found);
        }
    }
    for (retirement, NewestOfAll { document, id, is_hidden }) in newest {
        match judge(config, retirement, &document, id.as_deref()) {
            Some(early) => judged.early.push(early),
            None if is_hidden => judged.unknown.push(unknown(&document)),
            None => {}
        }
    }
    judged.early.sort_by(|one, other| (&one.source, &one.table).cmp(&(&other.source, &other.table)));
    judged
}

/// A retirement with the newest of its documents in all derived tables.
struct NewestOfAll {
    document: RetiredDocument,
    id: Option<Vec<u8>>,
    /// A derived table may have a newer one.
    is_hidden: bool,
}

impl NewestOfAll {
    fn new(document: RetiredDocument) -> Self {
        Self { document, id: None, is_hidden: false }
    }

    fn add(&mut self, newest: Newest) {
        match newest {
            Newest::Missing => {}
            Newest::Found(id) => self.id = self.id.take().max(Some(id)),
            Newest::Hidden => self.is_hidden = true,
        }
    }
}

fn unknown(document: &RetiredDocument) -> String {
    let RetiredDocument { table: RetiredTable { source, database, table, .. }, retired_on, .. } = document;
    format!(
        "{database}.{table} of {source} left on {retired_on}: rows of the next table of its name, or a fault, \
         hide its age"
    )
}

/// Returns the place of a table of a source. An heir is none: a job deleted its rows.
fn own_place(config: &Config, table: &RetiredTable) -> Option<TablePlace> {
    config.flux_places.of_own_table(&TableIdentity {
        entity: Entity::Flux,
        shard: table.shard,
        database: table.database.as_str().into(),
        table: table.table.as_str().into(),
    })
}

/// Judges a table by its newest identifier and the day on which it left.
fn judge(
    config: &Config,
    retirement: (ShardId, u64),
    document: &RetiredDocument,
    newest: Option<&[u8]>,
) -> Option<EarlyTable> {
    let RetiredDocument { table, retired_on, .. } = document;
    let place = own_place(config, table)?;
    let state = state(&place, Some(newest?), config.flux_places.system(), retired_on.parse().ok()?);
    let why = state.due(config.flux_retention().months.get()).err()?;
    (state != TableState::Odd).then(|| EarlyTable {
        source: table.source.clone(),
        table: format!("{}.{}", table.database, table.table),
        retired_on: retired_on.clone(),
        why,
        retirement,
    })
}

/// The tables that this process has counted. Clones share them: an attempt knows those of the attempts before, and a
/// projection those of the others.
#[derive(Debug, Clone)]
pub(super) struct EarlyTables(Arc<Mutex<Counted>>);

#[derive(Debug)]
struct Counted {
    tables: BTreeSet<(ShardId, u64)>,
    /// Moment of the first count of each projection.
    first: Instant,
    /// Moment of the next count of each projection that was counted.
    next: BTreeMap<String, Instant>,
}

impl Counted {
    fn new(started: Instant) -> Self {
        Self { tables: BTreeSet::new(), first: started + FIRST_AFTER, next: BTreeMap::new() }
    }

    fn next(&self, projection: &str) -> Instant {
        self.next.get(projection).copied().unwrap_or(self.first)
    }

    /// Returns whether the projection is to be counted now; if so, the next time is later.
    fn is_due(&mut self, projection: &str, now: Instant) -> bool {
        let is_due = self.next(projection) <= now;
        if is_due {
            self.next.insert(projection.to_owned(), now + EVERY);
        }
        is_due
    }
}

impl EarlyTables {
    /// Makes the counters of all sources.
    pub(super) fn new(wiring: &Wiring) -> Self {
        for source in &wiring.config().sources {
            counter!(names::RETIRED_TABLES_EARLY, "source" => source.name.clone()).increment(0);
        }
        Self(Arc::new(Mutex::new(Counted::new(Instant::now()))))
    }

    /// Returns whether the projection is to be counted now; the caller does so.
    pub(super) fn is_due(&self, projection: &str, now: Instant) -> bool {
        self.0.lock().expect("no holder panics").is_due(projection, now)
    }

    /// Returns the time until the next count of the projection, at most `longest`.
    pub(super) fn pause(&self, projection: &str, now: Instant, longest: Duration) -> Duration {
        let next = self.0.lock().expect("no holder panics").next(projection);
        next.saturating_duration_since(now).min(longest)
    }

    /// Counts the tables that left too early and were not counted here before, and names them in the log.
    pub(super) async fn count(&self, wiring: &Wiring, stores: &[DerivedStore]) {
        let Judged { early, unknown } = early_tables(wiring, stores, Some(DAYS)).await;
        for reason in unknown {
            tracing::warn!(reason, "the age of retired tables is not known");
        }
        let mut counted = self.0.lock().expect("no holder panics");
        for early in early {
            if counted.tables.insert(early.retirement) {
                let EarlyTable { source, table, retired_on, why, .. } = early;
                tracing::warn!(source, table, retired_on, why, "a table left its source before it was due");
                counter!(names::RETIRED_TABLES_EARLY, "source" => source).increment(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"
name = "test"
[log]
url = "tls://u:p@127.0.0.1:1"
[[entities]]
entity = "flux"
level = "composite"
tables = "flux_00_{db}.composite_{partition:02}_{month:02}"
removal = "retain"
[[sources]]
name = "source-a"
url = "mysql://u:p@127.0.0.1:1"
[[targets]]
name = "target-a"
url = "mysql://u:p@127.0.0.1:2"
[[projections]]
name = "relations"
kind = "flux_relations"
targets = ["target-a"]
"#;

    #[test]
    fn a_table_that_left_before_its_sixteenth_month_is_early_and_an_heir_is_none() {
        let config = Config::parse(CONFIG).unwrap_or_else(|faults| panic!("{faults:?}"));
        let why = |table: &str, generation, newest: Option<&str>, retired_on: &str| {
            let shard = ShardId::of("source-a", "flux_00_0", table, generation);
            let (source, database) = ("source-a".to_owned(), "flux_00_0".to_owned());
            let table = RetiredTable { shard, source, database, table: table.to_owned() };
            let retired_on = retired_on.to_owned();
            let document =
                RetiredDocument { table, position: 1, retired_on, newest: Newest::Missing, derived_table: 0 };
            judge(&config, (shard, 1), &document, newest.map(str::as_bytes)).map(|early| early.why)
        };
        let january = "composite_05_00";
        let newest = Some("2016013111031001000050000000001");
        assert_eq!(why(january, 0, newest, "2017-05-01"), None);
        let early = why(january, 0, newest, "2017-04-30").unwrap();
        assert!(early.ends_with("of 2016-01's table, 15 months old"), "{early}");
        assert_eq!(why(january, 1, newest, "2017-04-30"), None, "no table of a source, as an heir");
        assert_eq!(why(january, 0, None, "2017-04-30"), None, "no row says its age");
        assert!(why("composite_05_99", 0, newest, "2027-04-30").is_some(), "no month ends it");
    }

    #[test]
    fn the_first_count_waits_for_a_scrape_and_each_projection_has_its_hour() {
        let start = Instant::now();
        let mut counted = Counted::new(start);
        let mut is_due =
            |projection, seconds| counted.is_due(projection, start + Duration::from_secs(seconds));
        assert!(!is_due("a", 0) && !is_due("a", 299));
        assert!(is_due("a", 300) && !is_due("a", 301) && is_due("b", 301));
        assert!(!is_due("a", 3_899) && is_due("a", 3_900) && is_due("b", 3_901));
    }
}
