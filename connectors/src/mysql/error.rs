//! Makes a [`Fault`] of a client library's error: one table of server error numbers for both libraries and sides.

use std::error::Error as StdError;

use anabranch_pipeline::error::{Code, Fault};

use crate::tls;

/// The side of the flow that a server is on: an error number has another meaning for an operator on each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Source,
    Target,
}

impl Side {
    /// Returns the code of a refused account or certificate.
    pub fn denied(self) -> Code {
        match self {
            Self::Source => Code::SourceAccessDenied,
            Self::Target => Code::TargetAccessDenied,
        }
    }
}

/// Returns the fault for an error of `mysql_async`.
pub fn from_async(side: Side, subject: &str, error: mysql_async::Error) -> Fault {
    let number = match &error {
        mysql_async::Error::Server(server) => Some(server.code),
        mysql_async::Error::Io(mysql_async::IoError::Tls(_)) => return untrusted(side, subject, error),
        _ if tls::is_beneath(&error) => return untrusted(side, subject, error),
        _ => None,
    };
    fault(side, subject, number, error)
}

/// Returns the fault for an error of `sqlx`.
pub fn from_sqlx(side: Side, subject: &str, error: sqlx::Error) -> Fault {
    let number = match &error {
        sqlx::Error::Database(database) => database
            .try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()
            .map(sqlx::mysql::MySqlDatabaseError::number),
        sqlx::Error::Tls(_) | sqlx::Error::Configuration(_) => return untrusted(side, subject, error),
        _ if tls::is_beneath(&error) => return untrusted(side, subject, error),
        _ => None,
    };
    fault(side, subject, number, error)
}

/// Returns the fault of a connection that is not verified TLS although it should be.
fn untrusted(side: Side, subject: &str, error: impl StdError + Send + Sync + 'static) -> Fault {
    Fault::new(side.denied(), subject, "no verified TLS connection")
        .needs("a server with TLS whose certificate names the host and is signed by `ca_file`")
        .caused_by(error)
}

fn fault(
    side: Side,
    subject: &str,
    number: Option<u16>,
    error: impl StdError + Send + Sync + 'static,
) -> Fault {
    let Some(number) = number else {
        let code = match side {
            Side::Source => Code::SourceUnreachable,
            Side::Target => Code::TargetUnreachable,
        };
        return Fault::new(code, subject, "the connection failed").caused_by(error);
    };
    let code = code(side, number);
    let fault =
        Fault::new(code, subject, format!("the server answered error {number} ({})", meaning(number)));
    // The server's text of these has names and settings, never row values; that of others (1062, 1064, 1366, …) may.
    if shows_no_values(number) { fault.caused_by(error) } else { fault }
}

/// Returns the code for a server error number.
pub fn code(side: Side, number: u16) -> Code {
    match (side, number) {
        (Side::Source, 1045 | 1698 | 3159 | 4151) => Code::SourceAccessDenied,
        (Side::Target, 1045 | 1698 | 3159 | 4151) => Code::TargetAccessDenied,
        (Side::Source, 1044 | 1142 | 1143 | 1227 | 1370) => Code::SourceGrantMissing,
        (Side::Target, 1044 | 1142 | 1143 | 1227 | 1370) => Code::TargetGrantMissing,
        (Side::Source, 1236 | 1373 | 1789) => Code::BinlogPurged,
        // The file has no event at the requested offset.
        (Side::Source, 1220) => Code::BinlogEventCorrupt,
        (Side::Source, 1146 | 1049) => Code::SourceTableMissing,
        (Side::Target, 1146 | 1049) => Code::TargetTableMissing,
        (Side::Source, 1054) => Code::SourceColumnMissing,
        (Side::Target, 1054 | 1136) => Code::TargetTableShape,
        (Side::Source, _) => Code::SourceUnreachable,
        (Side::Target, 1290 | 1836) => Code::TargetReadOnly,
        (Side::Target, number) if passes_by_itself(number) => Code::TargetUnreachable,
        (Side::Target, _) => Code::TargetRejected,
    }
}

/// Whether the same statement may succeed later: lock wait, deadlock, shutdown, no primary component, too many
/// connections, host blocked for a while, statement time-out, disk full, killed.
fn passes_by_itself(number: u16) -> bool {
    matches!(number, 1021 | 1026 | 1028 | 1030 | 1040 | 1041 | 1047 | 1053 | 1114 | 1129 | 1152..=1161 | 1184 | 1203 | 1205 | 1206
        | 1213 | 1226 | 1317 | 1637 | 1927 | 1969 | 3024 | 3100..=3105)
}

/// Whether the server says that it is no longer the one to work with: it is read-only, shuts down, or is no part of its
/// cluster. Its address may lead to another server by now.
pub fn has_lost_its_role(error: &mysql_async::Error) -> bool {
    match error {
        mysql_async::Error::Server(server) => matches!(server.code, 1047 | 1053 | 1290 | 1836 | 3100),
        _ => false,
    }
}

fn shows_no_values(number: u16) -> bool {
    matches!(
        number,
        1044 | 1045
            | 1049
            | 1054
            | 1142
            | 1143
            | 1146
            | 1205
            | 1213
            | 1227
            | 1236
            | 1290
            | 1370
            | 1698
            | 3159
    )
}

fn meaning(number: u16) -> &'static str {
    match number {
        1044 | 1142 | 1143 | 1227 | 1370 => "a privilege is missing",
        1045 | 1698 => "user or password refused",
        3159 | 4151 => "the account requires TLS",
        1040 | 1203 | 1226 => "too many connections",
        1021 | 1026 | 1030 | 1114 => "storage is full, or fails",
        1047 => "the server is not in its cluster's primary component",
        1129 => "the server blocks this host after failed connections",
        1206 => "the server's lock table is full",
        1637 => "too many transactions at once",
        1969 | 3024 => "statement time-out",
        1049 => "no such database",
        1054 | 1136 => "other columns than expected",
        1146 => "no such table",
        1205 => "lock wait time-out",
        1213 => "deadlock",
        1236 => "the binlog cannot be read from this position",
        1290 | 1836 => "the server is read-only",
        1412 => "the table's definition changed after the snapshot",
        _ => "see the server's error list",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_cannot_be_read_is_no_certificate_that_is_not_trusted() {
        use rustls::{CertificateError, Error};
        use std::io::{self, ErrorKind};

        let cases: [(fn() -> io::Error, Code); 2] = [
            (|| io::Error::new(ErrorKind::InvalidData, "an event is shorter"), Code::SourceUnreachable),
            (
                || {
                    io::Error::new(
                        ErrorKind::InvalidData,
                        Error::InvalidCertificate(CertificateError::UnknownIssuer),
                    )
                },
                Code::SourceAccessDenied,
            ),
        ];
        for (error, code) in cases {
            let of_async = mysql_async::Error::Io(mysql_async::IoError::Io(error()));
            assert_eq!(from_async(Side::Source, "source", of_async).code(), code, "{}", error());
            let of_sqlx = sqlx::Error::Io(error());
            assert_eq!(from_sqlx(Side::Source, "source", of_sqlx).code(), code, "{}", error());
        }
    }

    #[test]
    fn the_text_of_an_error_is_left_out_if_it_may_quote_a_row() {
        for (number, is_shown) in [(1146, true), (1064, false), (1062, false), (1366, false)] {
            let message = "near 'a value'".to_owned();
            let error = mysql_async::ServerError { code: number, message, state: "42000".to_owned() };
            let fault = from_async(Side::Target, "target", mysql_async::Error::Server(error));
            assert_eq!(fault.to_string().contains("a value"), is_shown, "{fault}");
        }
    }

    #[test]
    fn what_a_target_refuses_for_a_while_only_is_told_as_such() {
        for number in [1021, 1026, 1030, 1040, 1047, 1129, 1205, 1206, 1213, 1226, 1637, 1969, 3024] {
            assert_eq!(code(Side::Target, number), Code::TargetUnreachable, "{number}");
        }
        for number in [1290, 1836] {
            assert_eq!(code(Side::Target, number), Code::TargetReadOnly, "{number}");
        }
        assert_eq!(code(Side::Target, 1366), Code::TargetRejected);
    }
}
