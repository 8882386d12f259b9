//! When a batch leaves: a pure decision, without a timer.
//!
//! A full batch leaves at once. A batch that is not full leaves as soon as the source has nothing more to read, so
//! latency is low under light load. While several messages are already in flight it waits for an acknowledgement and
//! grows meanwhile, so messages are large under heavy load.

/// Messages in flight from which on a batch that is not full waits. Two keep the log busy during a round trip.
const BUSY_IN_FLIGHT: usize = 2;

/// The inputs of the decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The batch has reached its limit.
    pub full: bool,
    /// The batch holds no change.
    pub empty: bool,
    /// The source has nothing more to read for now.
    pub drained: bool,
    /// The position has moved since the last message.
    pub moved: bool,
    /// It is time for a position message.
    pub position_message_due: bool,
    pub in_flight: usize,
    /// The writer takes another message.
    pub has_room: bool,
}

/// The reader's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Send the batch (an empty one is a position message).
    Append,
    /// Read on; acknowledgements are taken meanwhile.
    Fill,
    /// Take an acknowledgement first: the batch is full and nothing more may be sent.
    AwaitAcknowledgement,
}

pub fn next_step(view: View) -> Step {
    if view.full {
        return if view.has_room { Step::Append } else { Step::AwaitAcknowledgement };
    }
    let changes_wait = !view.empty && view.drained && view.in_flight < BUSY_IN_FLIGHT;
    let position_message_waits = view.empty && view.moved && view.position_message_due;
    if (changes_wait || position_message_waits) && view.has_room { Step::Append } else { Step::Fill }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: View = View {
        full: false,
        empty: true,
        drained: true,
        moved: false,
        position_message_due: false,
        in_flight: 0,
        has_room: true,
    };

    #[test]
    fn a_lone_change_leaves_at_once() {
        assert_eq!(next_step(View { empty: false, moved: true, ..IDLE }), Step::Append);
    }

    #[test]
    fn under_load_batches_grow_until_full_or_acknowledged() {
        let loaded = View { empty: false, moved: true, in_flight: 2, ..IDLE };
        assert_eq!(next_step(loaded), Step::Fill);
        assert_eq!(next_step(View { full: true, ..loaded }), Step::Append);
        assert_eq!(next_step(View { in_flight: 1, ..loaded }), Step::Append);
        assert_eq!(next_step(View { drained: false, in_flight: 0, ..loaded }), Step::Fill);
    }

    #[test]
    fn a_full_batch_without_room_waits_for_the_log() {
        assert_eq!(
            next_step(View { full: true, empty: false, in_flight: 256, has_room: false, ..IDLE }),
            Step::AwaitAcknowledgement
        );
    }

    #[test]
    fn a_position_message_is_sent_only_when_due_and_the_position_moved() {
        assert_eq!(next_step(IDLE), Step::Fill);
        assert_eq!(next_step(View { moved: true, ..IDLE }), Step::Fill);
        assert_eq!(next_step(View { position_message_due: true, ..IDLE }), Step::Fill);
        assert_eq!(next_step(View { moved: true, position_message_due: true, ..IDLE }), Step::Append);
    }
}
