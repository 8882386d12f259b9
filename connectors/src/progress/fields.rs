//! The fields of a progress row, listed once. Every store writes and reads its rows by this list, and the checksum
//! follows from it, so no store and no checksum can lack a field.

use std::borrow::Cow;

use anabranch_pipeline::error::Cause;
use anabranch_pipeline::records::{LaneId, Progress};
use anabranch_schemas::lsn::Lsn;
use serde::Serialize;

use super::{StoredProgress, words};

/// A value of a progress row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Value<'p> {
    Null,
    Number(u64),
    Text(Cow<'p, str>),
}

/// A field of a progress row that holds a part of the progress.
struct Field {
    /// Its name in every store.
    name: &'static str,
    part: Part,
}

/// The part of progress that a field holds: how to get it, and how to set it.
enum Part {
    Number(fn(&Progress) -> u64, fn(&mut Progress, u64)),
    Position(fn(&Progress) -> Lsn, fn(&mut Progress, Lsn)),
    Text(fn(&Progress) -> &str, fn(&mut Progress, String)),
    OptionalNumber(fn(&Progress) -> Option<u64>, fn(&mut Progress, Option<u64>)),
    OptionalText(fn(&Progress) -> Option<&str>, fn(&mut Progress, Option<String>)),
    /// The state of a refresh, and the parts without a field of their own.
    Words,
}

/// A part that is a member of [`Progress`], by kind and path.
macro_rules! member {
    (Text, $($path:ident).+) => {
        Part::Text(|progress| progress.$($path).+.as_str(), |progress, text| progress.$($path).+ = text)
    };
    ($kind:ident, $($path:ident).+) => {
        Part::$kind(|progress| progress.$($path).+, |progress, value| progress.$($path).+ = value)
    };
}

/// The fields in the order of the columns. Stored rows and their checksums depend on the order.
static FIELDS: [Field; 14] = [
    Field { name: "revision", part: member!(Number, revision) },
    Field { name: "position", part: member!(Position, position) },
    Field { name: "highest_position", part: member!(Position, highest_position) },
    Field { name: "highest_change", part: member!(Position, highest_change) },
    Field { name: "resume_file", part: member!(Text, resume.file) },
    Field { name: "resume_position", part: member!(Number, resume.position) },
    Field { name: "resume_gtid_set", part: member!(Text, resume.gtid_set) },
    Field { name: "server_flavor", part: member!(Text, server.flavor) },
    Field { name: "server_id", part: member!(Text, server.id) },
    Field {
        name: "message_sequence",
        part: Part::OptionalNumber(
            |progress| progress.message.as_ref().map(|(sequence, _)| *sequence),
            |progress, sequence| progress.message = sequence.map(|sequence| (sequence, String::new())),
        ),
    },
    Field {
        name: "message_id",
        part: Part::OptionalText(
            |progress| progress.message.as_ref().map(|(_, id)| id.as_str()),
            // The sequence was read before. A message has both.
            |progress, id| {
                progress.message = progress.message.take().zip(id).map(|((sequence, _), id)| (sequence, id));
            },
        ),
    },
    Field { name: "committed_at_us", part: member!(Number, committed_at_us) },
    Field { name: "rows_applied", part: member!(Number, rows) },
    Field { name: "refresh", part: Part::Words },
];

/// Fields before [`FIELDS`]: the lane, and for which lanes and layout the row was made.
const HEAD: [&str; 5] = ["projection", "source", "lane", "lanes", "layout"];
/// The field after [`FIELDS`].
const CHECKSUM: &str = "checksum";

/// Returns the names of all fields in the order of the columns.
pub(crate) fn columns() -> impl Iterator<Item = &'static str> {
    HEAD.into_iter().chain(FIELDS.iter().map(|field| field.name)).chain([CHECKSUM])
}

/// Returns the fields that a commit writes, with their values, in the order of the columns.
pub(crate) fn written<'p>(
    lane: &LaneId,
    progress: &'p Progress,
) -> impl Iterator<Item = (&'static str, Value<'p>)> + use<'p> {
    let checksum = checksum(&lane.projection, &lane.source, lane.lane, progress);
    let fields = FIELDS.iter().map(move |field| (field.name, field.value(progress)));
    fields.chain([(CHECKSUM, Value::Number(checksum.into()))])
}

/// Returns all fields of a row with their values, in the order of the columns.
pub(crate) fn row<'p>(
    lane: &'p LaneId,
    lanes: u32,
    layout: &'p str,
    progress: &'p Progress,
) -> Vec<(&'static str, Value<'p>)> {
    let head = [
        Value::Text(lane.projection.as_str().into()),
        Value::Text(lane.source.as_str().into()),
        Value::Number(lane.lane.into()),
        Value::Number(lanes.into()),
        Value::Text(layout.into()),
    ];
    HEAD.into_iter().zip(head).chain(written(lane, progress)).collect()
}

/// Returns the checksum over everything that a commit writes; it shows that a row was changed by hand. It is the CRC-32
/// (IEEE) of the numbers, and then of the texts, each with its length.
fn checksum(projection: &str, source: &str, lane: u32, progress: &Progress) -> u32 {
    let mut numbers = vec![u64::from(lane)];
    let mut texts = vec![Cow::Borrowed(projection), Cow::Borrowed(source)];
    for field in &FIELDS {
        match (&field.part, field.value(progress)) {
            (Part::OptionalNumber(..), Value::Number(number)) => numbers.extend([number, 1]),
            (Part::OptionalNumber(..), Value::Null) => numbers.extend([0, 0]),
            (Part::OptionalText(..), Value::Null) => texts.push(Cow::Borrowed("")),
            (_, Value::Number(number)) => numbers.push(number),
            (_, Value::Text(text)) => texts.push(text),
            // Rows from before there was a refresh keep their checksum.
            (_, Value::Null) => {}
        }
    }
    let mut hasher = crc32fast::Hasher::new();
    numbers.iter().for_each(|number| hasher.update(&number.to_le_bytes()));
    for text in texts {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.finalize()
}

impl Field {
    /// Whether the field holds a number or nothing.
    fn is_number(&self) -> bool {
        matches!(self.part, Part::Number(..) | Part::Position(..) | Part::OptionalNumber(..))
    }

    fn value<'p>(&self, progress: &'p Progress) -> Value<'p> {
        match self.part {
            Part::Number(get, _) => Value::Number(get(progress)),
            Part::Position(get, _) => Value::Number(get(progress).as_u64()),
            Part::Text(get, _) => Value::Text(get(progress).into()),
            Part::OptionalNumber(get, _) => get(progress).map_or(Value::Null, Value::Number),
            Part::OptionalText(get, _) => get(progress).map_or(Value::Null, |text| Value::Text(text.into())),
            Part::Words => words::write(progress).map_or(Value::Null, |text| Value::Text(text.into())),
        }
    }

    fn set(&self, progress: &mut Progress, value: Value<'_>) -> Result<(), Cause> {
        match (&self.part, value) {
            (Part::Number(_, set), Value::Number(number)) => set(progress, number),
            (Part::Position(_, set), Value::Number(number)) => set(progress, Lsn::from_u64(number)?),
            (Part::Text(_, set), Value::Text(text)) => set(progress, text.into_owned()),
            (Part::OptionalNumber(_, set), Value::Number(number)) => set(progress, Some(number)),
            (Part::OptionalNumber(_, set), Value::Null) => set(progress, None),
            (Part::OptionalText(_, set), Value::Text(text)) => set(progress, Some(text.into_owned())),
            (Part::OptionalText(_, set), Value::Null) => set(progress, None),
            (Part::Words, Value::Text(text)) => words::read(progress, Some(&text))?,
            (Part::Words, Value::Null) => words::read(progress, None)?,
            _ => return Err(OtherKind.into()),
        }
        Ok(())
    }
}

/// Fault of a field that no version of Anabranch wrote.
#[derive(Debug, thiserror::Error)]
#[error("field `{name}` holds no valid value")]
pub(crate) struct InvalidField {
    pub(crate) name: &'static str,
    #[source]
    pub(crate) cause: Cause,
}

#[derive(Debug, thiserror::Error)]
#[error("the value is absent or of another kind")]
struct OtherKind;

impl StoredProgress {
    /// Reads a row. `cell` returns the value of a name, which is wanted as a number or as a text; `None` = the store
    /// holds another kind of value. An operator sets the checksum to null to confirm that the row is right.
    pub(crate) fn read<'p>(
        cell: impl Fn(&'static str, bool) -> Option<Value<'p>>,
    ) -> Result<Self, InvalidField> {
        let other_kind = |name| InvalidField { name, cause: OtherKind.into() };
        let text = |name| match cell(name, false) {
            Some(Value::Text(text)) => Ok(text.into_owned()),
            _ => Err(other_kind(name)),
        };
        let number = |name| match cell(name, true) {
            Some(Value::Number(number)) => {
                u32::try_from(number).map_err(|error| InvalidField { name, cause: error.into() })
            }
            _ => Err(other_kind(name)),
        };
        let mut progress = Progress::default();
        for field in &FIELDS {
            let value = cell(field.name, field.is_number()).ok_or_else(|| other_kind(field.name))?;
            field.set(&mut progress, value).map_err(|cause| InvalidField { name: field.name, cause })?;
        }
        let [projection, source, layout] = [text(HEAD[0])?, text(HEAD[1])?, text(HEAD[4])?];
        let [lane, lanes] = [number(HEAD[2])?, number(HEAD[3])?];
        let is_trusted = match cell(CHECKSUM, true) {
            Some(Value::Null) => true,
            _ => number(CHECKSUM)? == checksum(&projection, &source, lane, &progress),
        };
        Ok(Self { projection, source, lane, lanes, layout, progress, is_trusted })
    }
}

#[cfg(test)]
mod tests;
