//! How a lane takes messages with fewer fields than its projection reads.
//!
//! A reader skips an update that changes none of the fields that it captures, so its messages do not tell what the
//! further fields hold. The lane applies the fields of such messages, and notes how many there were. At the first
//! message with all fields it begins to read its tables: they hold the past, and its feed brings the changes after it.
//! The same holds for a new projection, and for a projection or an installation that learns to read more.

use anabranch_schemas::change::Entity;
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;

use crate::records::Progress;

/// The fields that a projection reads of its entity: those from the first one on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FieldsRead {
    pub(super) entity: Entity,
    pub(super) fields: usize,
}

/// Consequences of a message's fields for a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FieldsTaken {
    /// Number of fields to note in progress.
    pub(super) noted: Option<usize>,
    /// The message lacks a field that the projection reads.
    pub(super) is_lacking: bool,
    /// The message is the first one that lacks such a field.
    pub(super) begins_lack: bool,
    /// Earlier messages lacked such a field and this one does not: all tables are to be read.
    pub(super) ends_lack: bool,
}

impl FieldsRead {
    /// Returns the number that progress notes when no field is lacking.
    pub(super) fn all(self) -> Option<usize> {
        self.noted(self.fields)
    }

    /// Returns the consequences of a message for a lane with this progress.
    pub(super) fn taken(self, progress: &Progress, message: &Envelope) -> FieldsTaken {
        let captured = message.captured.of(self.entity).min(self.fields);
        let has_begun = progress.position > Lsn::ZERO || progress.highest_position > Lsn::ZERO;
        let before = match has_begun {
            true => {
                progress.captured_fields.unwrap_or_else(|| self.entity.required_fields()).min(self.fields)
            }
            false => captured,
        };
        let (lacked, is_lacking) = (before < self.fields, captured < self.fields);
        let ends_lack = lacked && !is_lacking;
        FieldsTaken {
            noted: self.noted(if ends_lack { captured } else { before.min(captured) }),
            is_lacking,
            begins_lack: is_lacking && (!lacked || !has_begun),
            ends_lack,
        }
    }

    fn noted(self, fields: usize) -> Option<usize> {
        (fields != self.entity.required_fields()).then_some(fields)
    }
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::envelope::CapturedFields;

    use super::*;

    /// Returns the outcome of each message in turn, for a lane that reads `fields` fields of a user.
    fn outcomes(fields: usize, mut progress: Progress, messages: &[usize]) -> Vec<&'static str> {
        let read = FieldsRead { entity: Entity::User, fields };
        let outcome = |captured: &usize| {
            let captured = CapturedFields::new([(Entity::User, *captured)]);
            let taken = read.taken(&progress, &Envelope { captured, ..Envelope::default() });
            (progress.position, progress.captured_fields) = (Lsn::MAX, taken.noted);
            match taken {
                FieldsTaken { begins_lack: true, ends_lack: false, .. } => "begins to lack",
                FieldsTaken { is_lacking: true, ends_lack: false, .. } => "lacks",
                FieldsTaken { ends_lack: true, is_lacking: false, .. } => "reads",
                FieldsTaken { noted, .. } => {
                    assert_eq!(noted, read.all());
                    "all"
                }
            }
        };
        messages.iter().map(outcome).collect()
    }

    #[test]
    fn a_lane_reads_its_tables_at_the_first_message_with_all_fields_behind_one_that_lacked_some() {
        let begun = Progress { position: Lsn::MAX, ..Progress::default() };
        assert_eq!(
            outcomes(4, Progress::default(), &[2, 2, 4, 4]),
            ["begins to lack", "lacks", "reads", "all"]
        );
        assert_eq!(outcomes(4, Progress::default(), &[4, 4]), ["all", "all"], "it begins with all");
        assert_eq!(outcomes(4, begun.clone(), &[4, 4]), ["reads", "all"], "it read fewer fields before");
        assert_eq!(
            outcomes(4, begun.clone(), &[3, 4, 2, 3, 4]),
            ["lacks", "reads", "begins to lack", "lacks", "reads"]
        );
        // A later configuration reads one field more.
        let three = Progress { captured_fields: Some(3), ..begun };
        assert_eq!(outcomes(4, three, &[3, 4]), ["lacks", "reads"]);
    }

    #[test]
    fn a_lane_that_reads_what_each_table_has_never_notes_anything() {
        for progress in [Progress::default(), Progress { position: Lsn::MAX, ..Progress::default() }] {
            assert_eq!(outcomes(2, progress, &[2, 4, 3, 2]), ["all"; 4]);
        }
        let read = FieldsRead { entity: Entity::User, fields: 2 };
        assert_eq!(
            read.taken(&Progress::default(), &Envelope::default()).noted,
            None,
            "a header that names no entity"
        );
    }
}
