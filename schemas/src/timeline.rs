//! The timelines of a source: which server is read in which epoch. Each promotion begins another timeline. No epoch has
//! two servers, so rows of two servers never share a position.
//!
//! A server that comes back after another one was read gets another epoch: its positions mean something else then.

use std::fmt;
use std::str::FromStr;

use crate::envelope::ServerIdentity;
use crate::lsn::Lsn;

/// An epoch and the server that is read in it, as far as known. The default means that no server was read yet.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Timeline {
    pub epoch: u16,
    /// The server of the epoch; the default identity, which no server has, when it is not known.
    pub server: ServerIdentity,
}

impl Timeline {
    /// Returns the timeline of a position and its server.
    pub fn of(position: Lsn, server: &ServerIdentity) -> Self {
        Self { epoch: position.epoch(), server: server.clone() }
    }

    /// Returns the timeline for reading the present server after this latest one: the same epoch, or the next.
    pub fn followed_by(&self, present: &ServerIdentity) -> Self {
        let is_over = self.server != *present;
        Self { epoch: self.epoch.saturating_add(u16::from(is_over)), server: present.clone() }
    }

    /// Returns whether both have the same epoch with different servers: then rows of both may share positions.
    pub fn contradicts(&self, other: &Self) -> bool {
        let (is_one_known, is_other_known) = (self.is_known(), other.is_known());
        self.epoch == other.epoch && is_one_known && is_other_known && self.server != other.server
    }

    /// Returns the later of two. When they contradict each other the result has no server, so that the next reading
    /// begins another epoch.
    #[must_use]
    pub fn latest(self, other: Self) -> Self {
        if self.contradicts(&other) {
            return Self { epoch: self.epoch, server: ServerIdentity::default() };
        }
        let is_other = (other.epoch, other.is_known()) > (self.epoch, self.is_known());
        if is_other { other } else { self }
    }

    fn is_known(&self) -> bool {
        self.server != ServerIdentity::default()
    }
}

/// Writes `2 mariadb:7`.
impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.epoch, self.server)
    }
}

/// The text is not an epoch and a server.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected an epoch and a server, such as `2 mariadb:7`")]
pub struct InvalidTimeline;

impl FromStr for Timeline {
    type Err = InvalidTimeline;

    fn from_str(text: &str) -> Result<Self, InvalidTimeline> {
        let (epoch, server) = text.split_once(' ').ok_or(InvalidTimeline)?;
        let (flavor, id) = server.split_once(':').ok_or(InvalidTimeline)?;
        let server = ServerIdentity { flavor: flavor.to_owned(), id: id.to_owned() };
        Ok(Self { epoch: epoch.parse().map_err(|_| InvalidTimeline)?, server })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::FIRST_EPOCH;

    fn timeline(epoch: u16, id: &str) -> Timeline {
        let flavor = if id.is_empty() { "" } else { "mariadb" };
        Timeline { epoch, server: ServerIdentity { flavor: flavor.to_owned(), id: id.to_owned() } }
    }

    #[test]
    fn a_server_keeps_its_epoch_and_another_begins_the_next() {
        assert_eq!(Timeline::default().followed_by(&timeline(0, "1").server), timeline(FIRST_EPOCH, "1"));
        assert_eq!(timeline(2, "1").followed_by(&timeline(0, "1").server), timeline(2, "1"));
        assert_eq!(timeline(2, "1").followed_by(&timeline(0, "2").server), timeline(3, "2"));
        assert_eq!(timeline(2, "").followed_by(&timeline(0, "2").server), timeline(3, "2"));
    }

    #[test]
    fn the_latest_is_the_highest_epoch_and_two_servers_in_one_epoch_are_nobody() {
        let latest = |one: &Timeline, other: &Timeline| {
            let both = (one.clone().latest(other.clone()), other.clone().latest(one.clone()));
            assert_eq!(both.0, both.1);
            both.0
        };
        assert_eq!(latest(&timeline(1, "1"), &timeline(2, "2")), timeline(2, "2"));
        assert_eq!(latest(&timeline(2, "2"), &timeline(2, "2")), timeline(2, "2"));
        assert_eq!(latest(&timeline(2, ""), &timeline(2, "2")), timeline(2, "2"));
        assert_eq!(latest(&timeline(3, ""), &timeline(2, "2")), timeline(3, ""));
        assert_eq!(latest(&timeline(2, "1"), &timeline(2, "2")), timeline(2, ""));
    }

    #[test]
    fn the_text_is_read_back() {
        for known in
            [timeline(2, "7"), timeline(2047, "3E11FA47-71CA-11E1-9E33-C80AA9429562"), Timeline::default()]
        {
            assert_eq!(known.to_string().parse(), Ok(known));
        }
        for text in ["", "2", "2 7", "x mariadb:7"] {
            assert_eq!(text.parse::<Timeline>(), Err(InvalidTimeline), "{text}");
        }
    }
}
