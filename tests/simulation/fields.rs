//! A reader that captures more fields than the stream has, while nothing changes at its source.

use std::sync::Arc;
use std::time::Duration;

use anabranch_connectors::memory::{Group, ScriptedRow};
use anabranch_schemas::birthday::Layout;
use anabranch_schemas::change::{Entity, Value};
use tokio::time::sleep;

use crate::daemon::Daemon;
use crate::script;
use crate::stage::{Stage, limits};

/// A long time for readers and lanes, and too short for a regular position message.
const WHILE: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(3600);

/// Otherwise the lanes would wait for the next change.
#[tokio::test(start_paused = true)]
async fn a_reader_of_a_quiet_source_tells_soon_after_its_start_that_it_captures_more_fields() {
    let mut stage = Stage::calm(Layout::ByDay, limits(1024, 10, LONG));
    stage.is_lunar = true;
    let stage = Arc::new(stage);
    let older = Daemon::start_capturing(&stage, None, Entity::User.required_fields());
    let text = |text: &'static str| Value::Bytes(text.as_bytes().into());
    let date = Value::Date { year: 1990, month: 5, day: 4 };
    let after = Some(vec![Value::UInt(1), date, text("01-03"), text("lunar")]);
    stage.sources[0].commit(Group::Rows(vec![vec![ScriptedRow {
        table: script::table(0),
        before: None,
        after,
    }]]));
    sleep(WHILE).await;
    older.stop().await;
    let _daemon = Daemon::start(&stage, None);
    sleep(WHILE).await;
    let found: Vec<_> = stage.found().into_iter().map(|(_, table, .., values)| (table, values)).collect();
    let expected = ("birthday_00.lunar_birthday_0103".to_owned(), "01-03 lunar".to_owned());
    assert_eq!(found, [expected]);
}
