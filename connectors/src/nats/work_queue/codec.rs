//! A message of the work queue as bytes: a version, then `postcard`.
//!
//! Any client that may publish to the subject may send any bytes, so every length is checked before it is used.

use std::sync::Arc;

use anabranch_coupons::records::{MEMBERS_MAX, Member, Message, RunKey, part};
use anabranch_schemas::celebration::Calendar;
use jiff::civil::Date;
use serde::{Deserialize, Serialize};

/// Largest message: a hundred members take a kilobyte and a half at most.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 * 1024;
const VERSION: u8 = 1;
/// The limit for names of programmes.
const NAME_BYTES_MAX: usize = 32;

/// The reason why bytes are no message. It repeats none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("it has more than {MESSAGE_BYTES_MAX} bytes")]
    TooLarge,
    #[error("it is of another version than {VERSION}")]
    Version,
    #[error("its bytes are no message of this version")]
    Bytes,
    #[error("its programme has no name of a programme")]
    Programme,
    #[error("its day is on no calendar")]
    Day,
    #[error("its members are none, more than {MEMBERS_MAX}, or of several parts")]
    Members,
}

#[derive(Debug, Serialize, Deserialize)]
struct WireMessage<'m> {
    #[serde(borrow)]
    programme: &'m str,
    year: i16,
    month: i8,
    day: i8,
    wave: u8,
    members: Vec<(u64, Calendar)>,
}

pub(super) fn encode(message: &Message) -> Vec<u8> {
    let day = message.run.day;
    let wire = WireMessage {
        programme: &message.run.programme,
        year: day.year(),
        month: day.month(),
        day: day.day(),
        wave: message.wave,
        members: message.members.iter().map(|member| (member.user, member.calendar)).collect(),
    };
    postcard::to_extend(&wire, vec![VERSION]).expect("a vector has room for everything")
}

pub(super) fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(Malformed::TooLarge);
    }
    let rest = bytes.strip_prefix(&[VERSION]).ok_or(Malformed::Version)?;
    let (wire, rest) = postcard::take_from_bytes::<WireMessage<'_>>(rest).map_err(|_| Malformed::Bytes)?;
    if !rest.is_empty() {
        return Err(Malformed::Bytes);
    }
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_programme = (1..=NAME_BYTES_MAX).contains(&wire.programme.len());
    if !is_programme || !wire.programme.chars().all(is_name) {
        return Err(Malformed::Programme);
    }
    let day = Date::new(wire.year, wire.month, wire.day).map_err(|_| Malformed::Day)?;
    let members: Vec<Member> =
        wire.members.iter().map(|(user, calendar)| Member { user: *user, calendar: *calendar }).collect();
    let is_of_one_part = members.iter().all(|member| part(member.user) == part(members[0].user));
    if members.is_empty() || members.len() > MEMBERS_MAX || !is_of_one_part {
        return Err(Malformed::Members);
    }
    let run = RunKey { programme: Arc::from(wire.programme), day };
    Ok(Message { run, members, wave: wire.wave })
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;
    use proptest::prelude::*;

    use super::*;

    fn message(members: impl IntoIterator<Item = u64>) -> Message {
        let members =
            members.into_iter().map(|user| Member { user: user * 16 + 3, calendar: Calendar::Lunar });
        let run = RunKey { programme: Arc::from("birthday-2"), day: date(2027, 2, 28) };
        Message { run, members: members.collect(), wave: 2 }
    }

    #[test]
    fn a_message_reads_back_what_was_written() {
        let largest = message(u64::MAX / 16 - 100..u64::MAX / 16);
        for message in [message([0]), message(0..100), largest] {
            let bytes = encode(&message);
            assert!(bytes.len() < 1_600, "{}", bytes.len());
            assert_eq!(decode(&bytes), Ok(message));
        }
    }

    #[test]
    fn the_bytes_of_version_1_stay() {
        let expected =
            [1, 10, 98, 105, 114, 116, 104, 100, 97, 121, 45, 50, 214, 31, 2, 28, 2, 2, 3, 1, 19, 1];
        assert_eq!(encode(&message([0, 1])), expected);
    }

    #[test]
    fn what_is_no_message_is_named() {
        let whole = encode(&message([1, 2]));
        let changed = |place: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[place] = byte;
            bytes
        };
        let longer = [whole.clone(), vec![0]].concat();
        let other_part = Message { members: vec![member(1), member(2)], ..message([]) };
        for (bytes, expected) in [
            (vec![], Malformed::Version),
            (changed(0, 2), Malformed::Version),
            (whole[..whole.len() - 1].to_vec(), Malformed::Bytes),
            (longer, Malformed::Bytes),
            (changed(2, b'/'), Malformed::Programme),
            (changed(14, 26), Malformed::Day),
            (encode(&message([])), Malformed::Members),
            (encode(&message(0..101)), Malformed::Members),
            (encode(&other_part), Malformed::Members),
            (vec![VERSION; MESSAGE_BYTES_MAX + 1], Malformed::TooLarge),
        ] {
            assert_eq!(decode(&bytes), Err(expected));
        }
    }

    fn member(user: u64) -> Member {
        Member { user, calendar: Calendar::Solar }
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_no_crash(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            _ = decode(&bytes);
            _ = decode(&[vec![VERSION], bytes].concat());
        }
    }
}
