//! Records of operations: they stay as they were written, in the order of writing.

use anabranch_connectors::memory::{MemoryOperations, Weather};
use anabranch_connectors::mysql::store::MysqlOperations;
use anabranch_pipeline::ports::Operations;
use anabranch_pipeline::records::{OperationPhase, OperationRecord, OperationWay, StoredOperation};

use crate::derived::StoreSite;
use crate::source::DatabaseKind;

on_twin_and_both_kinds_of_server!(Twin, Server:
    records_come_back_as_they_were_written_the_newest_first,
    a_page_continues_below_the_number_of_the_one_before,
    records_that_two_processes_write_at_once_are_all_there,
);

pub trait Ground: Sized {
    type Operations: Operations;

    async fn start() -> Self;
    fn operations(&self) -> Self::Operations;
}

pub struct Twin(MemoryOperations);

impl Ground for Twin {
    type Operations = MemoryOperations;

    async fn start() -> Self {
        Self(MemoryOperations::new(Weather::calm()))
    }

    fn operations(&self) -> MemoryOperations {
        self.0.clone()
    }
}

pub struct Server(StoreSite);

impl Server {
    pub async fn further(kind: DatabaseKind) -> Option<Self> {
        Some(Self::on(StoreSite::further(kind).await?).await)
    }

    async fn on(site: StoreSite) -> Self {
        site.target("target-a").setup().await.unwrap();
        Self(site)
    }
}

impl Ground for Server {
    type Operations = MysqlOperations;

    async fn start() -> Self {
        Self::on(StoreSite::new().await).await
    }

    fn operations(&self) -> MysqlOperations {
        MysqlOperations::new(&self.0.target("target-a"))
    }
}

fn record(operation: u64, phase: OperationPhase) -> OperationRecord {
    OperationRecord {
        operation: format!("{operation:016x}"),
        phase,
        at_ms: 1_795_230_000_123 + operation,
        who: "ann".to_owned(),
        way: OperationWay::Page,
        host: "db-1".to_owned(),
        version: "0.1.0".to_owned(),
        command: "anabranch restart reader/a".to_owned(),
        before: None,
        after: None,
    }
}

/// The records of a page, without their numbers, which must fall.
fn plain(page: Vec<StoredOperation>) -> Vec<OperationRecord> {
    assert!(page.is_sorted_by(|one, two| one.number > two.number), "{page:?}");
    page.into_iter().map(|stored| stored.record).collect()
}

async fn records_come_back_as_they_were_written_the_newest_first(ground: impl Ground) {
    let operations = ground.operations();
    assert_eq!(operations.newest(None, 10).await.unwrap(), []);
    let begun = OperationRecord {
        before: Some("birthday/target/a/0: 1:42:8192\nthe second line".to_owned()),
        command: "anabranch pause --projection birthday --reason 'new\\ disks; 🙂'".to_owned(),
        way: OperationWay::Command,
        ..record(1, OperationPhase::Begun)
    };
    let failed = OperationRecord { after: Some(String::new()), ..record(1, OperationPhase::Failed) };
    let done = OperationRecord {
        at_ms: 1_000,
        after: Some("it's \"done\"".to_owned()),
        ..record(2, OperationPhase::Done)
    };
    for record in [&begun, &failed, &done] {
        operations.append(record).await.unwrap();
    }
    assert_eq!(plain(operations.newest(None, 10).await.unwrap()), [done, failed, begun]);
}

async fn a_page_continues_below_the_number_of_the_one_before(ground: impl Ground) {
    let operations = ground.operations();
    for number in 0..5 {
        operations.append(&record(number, OperationPhase::Begun)).await.unwrap();
    }
    let first = operations.newest(None, 2).await.unwrap();
    let last = first.last().unwrap().number;
    let second = operations.newest(Some(last), 100).await.unwrap();
    let all: Vec<String> =
        plain(first.into_iter().chain(second).collect()).into_iter().map(|one| one.operation).collect();
    assert_eq!(all, [4, 3, 2, 1, 0].map(|number: u64| format!("{number:016x}")));
    assert_eq!(operations.newest(Some(1), 10).await.unwrap(), []);
    assert_eq!(operations.newest(None, 0).await.unwrap(), []);
}

async fn write(operations: &impl Operations, first: u64) {
    for number in first..first + 10 {
        operations.append(&record(number, OperationPhase::Done)).await.unwrap();
    }
}

async fn records_that_two_processes_write_at_once_are_all_there(ground: impl Ground) {
    let (one, two) = (ground.operations(), ground.operations());
    tokio::join!(write(&one, 0), write(&two, 100));
    let mut all: Vec<String> =
        plain(one.newest(None, 100).await.unwrap()).into_iter().map(|one| one.operation).collect();
    all.sort();
    let expected: Vec<String> = (0..10).chain(100..110).map(|number: u64| format!("{number:016x}")).collect();
    assert_eq!(all, expected);
}
