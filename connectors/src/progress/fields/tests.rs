//! The stored form of progress rows: its fields, their order, and the checksum. Rows of earlier versions have it.

use anabranch_pipeline::records::Refresh;
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::ResumePoint;

use super::*;

fn lane(number: u32) -> LaneId {
    LaneId { projection: "birthday".into(), target: "t".into(), source: "source-a".into(), lane: number }
}

/// Progress in which every field has a value of its own.
fn full() -> Progress {
    let lsn = |number| Lsn::from_u64(number).unwrap();
    Progress {
        revision: 42,
        position: lsn(5_000),
        highest_position: lsn(6_000),
        highest_change: lsn(4_500),
        resume: ResumePoint {
            file: "mysql-bin.000007".into(),
            position: 8_192,
            gtid_set: "0-1-50".into(),
            ..ResumePoint::default()
        },
        server: ServerIdentity { flavor: "mariadb".into(), id: "5b1c".into() },
        message: Some((17, "17-abc".into())),
        committed_at_us: 1_700_000_000_000_000,
        rows: 99,
        refresh: Some(Refresh::of_every_table()),
        was_refreshed: true,
        captured_fields: Some(4),
        beginning: 2,
        ..Progress::default()
    }
}

/// Writes a row as `name=value` with blanks between them.
fn text(row: &[(&str, Value<'_>)]) -> String {
    let cell = |(name, value): &(&str, Value<'_>)| match value {
        Value::Null => format!("{name}=NULL"),
        Value::Number(number) => format!("{name}={number}"),
        Value::Text(text) => format!("{name}={text:?}"),
    };
    row.iter().map(cell).collect::<Vec<_>>().join(" ")
}

fn read(row: &[(&'static str, Value<'static>)]) -> Result<StoredProgress, InvalidField> {
    StoredProgress::read(|name, _| {
        let (_, value) = row.iter().find(|(column, _)| *column == name).unwrap();
        Some(value.clone())
    })
}

fn owned(row: Vec<(&'static str, Value<'_>)>) -> Vec<(&'static str, Value<'static>)> {
    let value = |value| match value {
        Value::Null => Value::Null,
        Value::Number(number) => Value::Number(number),
        Value::Text(text) => Value::Text(Cow::Owned(text.into_owned())),
    };
    row.into_iter().map(|(name, found)| (name, value(found))).collect()
}

#[test]
fn a_progress_row_has_the_fields_the_order_and_the_checksum_that_earlier_versions_gave_it() {
    assert_eq!(
        text(&row(&lane(3), 4, "by_day", &full())),
        "projection=\"birthday\" source=\"source-a\" lane=3 lanes=4 layout=\"by_day\" revision=42 position=5000 \
         highest_position=6000 highest_change=4500 resume_file=\"mysql-bin.000007\" resume_position=8192 \
         resume_gtid_set=\"0-1-50\" server_flavor=\"mariadb\" server_id=\"5b1c\" message_sequence=17 \
         message_id=\"17-abc\" committed_at_us=1700000000000000 rows_applied=99 \
         refresh=\"beginning:2 fields:4 - - 0\" checksum=106955279"
    );
    assert_eq!(
        text(&row(&lane(1), 2, "by_day", &Progress::default())),
        "projection=\"birthday\" source=\"source-a\" lane=1 lanes=2 layout=\"by_day\" revision=0 position=0 \
         highest_position=0 highest_change=0 resume_file=\"\" resume_position=0 resume_gtid_set=\"\" \
         server_flavor=\"\" server_id=\"\" message_sequence=NULL message_id=NULL committed_at_us=0 rows_applied=0 \
         refresh=NULL checksum=2752007711"
    );
}

#[test]
fn every_field_is_read_back_and_is_part_of_the_checksum() {
    let (progress, lane) = (full(), lane(3));
    let row = owned(row(&lane, 4, "by_day", &progress));
    let stored = read(&row).unwrap();
    assert_eq!((stored.progress, stored.lanes, stored.layout.as_str()), (progress, 4, "by_day"));
    assert!(stored.is_trusted);
    for field in &FIELDS {
        let mut changed = row.clone();
        let (_, value) = changed.iter_mut().find(|(name, _)| *name == field.name).unwrap();
        *value = match &*value {
            Value::Number(number) => Value::Number(number + 1),
            _ if field.name == "refresh" => Value::Text("fields:5 - - 0".into()),
            Value::Text(text) => Value::Text(format!("{text}0").into()),
            Value::Null => panic!("{} has no value", field.name),
        };
        assert!(!read(&changed).unwrap().is_trusted, "{}", field.name);
        changed.last_mut().unwrap().1 = Value::Null;
        assert!(read(&changed).unwrap().is_trusted, "{}", field.name);
    }
}

#[test]
fn a_value_of_another_kind_is_refused_by_its_name() {
    let lane = lane(3);
    let row = owned(row(&lane, 4, "by_day", &Progress::default()));
    for name in ["lane", "layout", "revision", "position", "resume_file", "message_sequence", "checksum"] {
        let mut changed = row.clone();
        let (_, value) = changed.iter_mut().find(|(column, _)| *column == name).unwrap();
        *value = if matches!(value, Value::Text(_)) { Value::Number(1) } else { Value::Text("x".into()) };
        assert_eq!(read(&changed).unwrap_err().name, name);
    }
}
