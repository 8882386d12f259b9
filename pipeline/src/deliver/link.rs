//! Whether a message continues a lane's state; the rules are the same for the stream and for a direct feed.

use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::timeline::Timeline;

use crate::error::{Code, Fault};
use crate::records::{LaneId, Progress};

/// Requires one server in an epoch: rows of another server under the same epoch have incomparable positions.
pub(super) fn require_timeline(lane: &LaneId, progress: &Progress, envelope: &Envelope) -> Result<(), Fault> {
    let (own, theirs) = (
        Timeline::of(progress.position, &progress.server),
        Timeline::of(envelope.position, &envelope.server),
    );
    if !own.contradicts(&theirs) {
        return Ok(());
    }
    let found = format!("epoch and server of the stream are {theirs}, and the lane's are {own}");
    Err(Fault::new(Code::LogEpochReused, format!("lane {lane}"), found)
        .needs("one server for each epoch")
        .remedy(BEGIN_NEXT_EPOCH))
}

/// Remedy that makes the reader of an empty stream ask the lanes for their epochs.
pub(super) const BEGIN_NEXT_EPOCH: &str = "if it stays: delete the source's stream (`nats stream rm`), `anabranch --config FILE \
     setup`, restart: the log continues from the lanes, in an epoch that none of them knows";

/// Checks epoch and beginning of a message against the lane, before anything else is checked.
pub(super) fn require_history(lane: &LaneId, progress: &Progress, envelope: &Envelope) -> Result<(), Fault> {
    require_timeline(lane, progress, envelope)?;
    require_beginning(lane, progress, envelope)
}

/// Refuses a message of another beginning of the source: an earlier one, or a later one before the lane begins anew
/// too.
pub(super) fn require_beginning(
    lane: &LaneId,
    progress: &Progress,
    envelope: &Envelope,
) -> Result<(), Fault> {
    let (own, theirs) = (progress.beginning, envelope.beginning);
    if own == theirs {
        return Ok(());
    }
    let found = format!("the stream has beginning {theirs} of the source, and the lane has {own}");
    Err(Fault::new(Code::LogHole, format!("lane {lane}"), found).needs("the same beginning in both"))
}

/// Whether a message continues, or begins, the state of a lane at `position`.
///
/// Positions of two servers cannot be compared. A message that spans a fail-over continues only a lane that is exactly
/// at the old server's position after which the message comes. A lane that reads the new server already may be far
/// before the message's changes. A lane that was further on the old server would go back to a point that may be purged.
///
/// Parts of one event have one position. A message that begins with a later part continues only a lane that has the
/// earlier ones: the lane took the message before (`follows`), or is past the event.
pub(super) fn links(envelope: &Envelope, position: Lsn, follows: bool) -> bool {
    let begins = envelope.origin && position == Lsn::ZERO;
    let is_between_servers = envelope.previous.epoch() < envelope.position.epoch();
    let spans = is_between_servers && envelope.previous != position && envelope.position > position;
    let lacks_parts = envelope.continues && envelope.previous == position && !follows;
    begins || (envelope.previous <= position && !lacks_parts && (envelope.origin || !spans))
}

/// Whether a message of the stream leaves a lane the part of a group that it has taken.
///
/// The new server of a message that spans a fail-over may lack the group. It has the group if the stream reports the
/// part: in this message, or in the one before it (`announced`), after which the reader entered that server's binlog.
/// Otherwise the stream lost the messages with the part before the reader came there: the lane must ask the server
/// itself.
pub(super) fn keeps_part(progress: &Progress, announced: Option<&str>, envelope: &Envelope) -> bool {
    let is_between_servers = envelope.previous.epoch() < envelope.position.epoch();
    let Some(part) = progress.resume.partial.as_deref() else { return true };
    !is_between_servers || [announced, envelope.resume.partial.as_deref()].contains(&Some(part))
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::lsn::ResumePoint;

    use super::*;

    #[test]
    fn a_message_of_another_beginning_is_a_hole() {
        let id = LaneId { projection: "p".into(), target: "t".into(), source: "s".into(), lane: 0 };
        let lane = Progress { beginning: 2, ..Progress::default() };
        let taken = |beginning| {
            let envelope = Envelope { beginning, ..Envelope::default() };
            require_history(&id, &lane, &envelope).map_err(|fault| fault.code())
        };
        assert_eq!([taken(1), taken(2), taken(3)], [Err(Code::LogHole), Ok(()), Err(Code::LogHole)]);
    }

    fn message(previous: (u16, u64), position: (u16, u64)) -> Envelope {
        let lsn = |(epoch, number): (u16, u64)| Lsn::new(epoch, 1, number * 16).unwrap();
        Envelope { previous: lsn(previous), position: lsn(position), ..Envelope::default() }
    }

    fn linked(envelope: &Envelope, position: Lsn) -> bool {
        links(envelope, position, false)
    }

    #[test]
    fn a_message_that_spans_a_fail_over_continues_only_a_lane_of_the_old_server() {
        let lane = |epoch, number: u64| Lsn::new(epoch, 1, number * 16).unwrap();
        let spanning = message((1, 50), (2, 9));
        assert!(linked(&spanning, lane(1, 50)));
        assert!(!linked(&spanning, lane(1, 49)));
        assert!(!linked(&spanning, lane(1, 51)), "it would be put back");
        // It holds the changes after 1:50, which may be 2:8 and 2:9; the lane lacks those from 2:4 on.
        assert!(!linked(&spanning, lane(2, 3)));
        assert!(linked(&spanning, lane(2, 9)), "there is nothing in it");
        assert!(linked(&message((2, 9), (2, 12)), lane(2, 9)));
        let first = Envelope { origin: true, ..message((1, 0), (1, 5)) };
        assert!(linked(&Envelope { previous: Lsn::ZERO, ..first }, lane(1, 3)));
    }

    /// Otherwise rows of a transaction that the other server lacks would stay for ever.
    #[test]
    fn a_lane_within_a_group_follows_the_stream_to_another_server_only_if_the_stream_tells_of_the_part() {
        let part =
            |gtid: Option<&str>| ResumePoint { partial: gtid.map(Into::into), ..ResumePoint::default() };
        let lane = |gtid| Progress { resume: part(gtid), ..Progress::default() };
        let spanning = |gtid| Envelope { resume: part(gtid), ..message((1, 50), (2, 9)) };
        let within = lane(Some("0-1-7"));
        assert!(!keeps_part(&within, None, &spanning(None)));
        assert!(!keeps_part(&within, Some("0-1-6"), &spanning(None)));
        assert!(keeps_part(&within, Some("0-1-7"), &spanning(None)));
        assert!(keeps_part(&within, None, &spanning(Some("0-1-7"))));
        assert!(keeps_part(&within, None, &message((1, 50), (1, 60))), "the same server goes on");
        assert!(keeps_part(&lane(None), None, &spanning(None)));
    }

    /// Retention may remove the message with the first part, and keep those with the others.
    #[test]
    fn a_later_part_of_an_event_continues_only_a_lane_that_has_the_earlier_ones() {
        let lane = |number: u64| Lsn::new(1, 1, number * 16).unwrap();
        let part = Envelope { continues: true, ..message((1, 50), (1, 60)) };
        assert!(!links(&part, lane(50), false));
        assert!(links(&part, lane(50), true));
        assert!(links(&part, lane(60), false), "it is behind the event");
    }
}
