//! The proof that a server does not have a table, and the answers that are none.

use anabranch_pipeline::ports::{RowSource, SourceConnector, TableVisibility};
use anabranch_schemas::change::{Entity, TableIdentity};
use anabranch_schemas::lsn::FIRST_EPOCH;
use anabranch_schemas::shard::ShardId;

use crate::source::Database;

on_each_server!(only_a_table_that_does_not_exist_is_proved_absent);

/// The account may read what the prefix of the tests begins, and nothing of another database.
async fn only_a_table_that_does_not_exist_is_proved_absent(database: Database) {
    let database = database.with_tables().await;
    let hidden = format!("hidden_{}", database.prefix);
    database.run(&[&format!("CREATE DATABASE `{hidden}`")]).await;
    database.run(&[&format!("CREATE TABLE `{hidden}`.t0 (user_id BIGINT PRIMARY KEY)")]).await;
    let source = database.source();
    let is_absent = async |name: &str, table: &str| {
        let head = source.head().await.unwrap();
        let table = TableIdentity {
            entity: Entity::User,
            shard: ShardId::of("source", name, table, 0),
            database: name.to_owned().into(),
            table: table.to_owned().into(),
        };
        let proof = source.absence(&table, FIRST_EPOCH).await.unwrap();
        if let Some(chunk) = &proof {
            assert!(chunk.low >= head && chunk.low <= chunk.high && chunk.rows == 0, "{chunk:?}");
            assert!(chunk.next.is_none(), "{chunk:?}");
        }
        proof.is_some()
    };
    let [own, gone] = ["0", "7"].map(|number| format!("{}{number}", database.prefix));
    assert!(!is_absent(&own, "t0").await, "it exists");
    assert!(!is_absent(&own, "other").await, "it exists, and no pattern has it");
    assert!(is_absent(&own, "t7").await);
    assert!(is_absent(&gone, "t0").await, "its database does not exist");
    assert!(!is_absent(&hidden, "t0").await, "it exists, and the account may not read it");
    assert!(!is_absent(&hidden, "t7").await, "the account may not know");
    let visibility = async |name: &str, table: &str| source.visibility(name, table).await.unwrap();
    for table in ["t0", "other"] {
        let found = visibility(&own, table).await;
        assert!(matches!(found, TableVisibility::Readable), "{table}, a pattern or not: {found:?}");
    }
    for (name, table) in [(&own, "t7"), (&gone, "t0")] {
        let found = visibility(name, table).await;
        assert!(matches!(found, TableVisibility::Gone), "{name}.{table}: {found:?}");
    }
    for table in ["t0", "t7"] {
        let found = visibility(&hidden, table).await;
        assert!(matches!(found, TableVisibility::Hidden(_)), "{table}, which may exist: {found:?}");
    }
    database.run(&["CREATE VIEW $0.t5 AS SELECT * FROM $0.t0", "DROP TABLE $0.t0"]).await;
    assert!(!is_absent(&own, "t5").await, "its view exists, and cannot be read");
    assert!(is_absent(&own, "t0").await);
    database.run(&[&format!("DROP DATABASE `{hidden}`")]).await;
}
