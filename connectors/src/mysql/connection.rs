//! Options for connections to a MySQL or MariaDB server, for either client library.
//!
//! With a CA file the connection is TLS, verified against that CA and the host name; without one it is plain. There is
//! no unverified TLS. `mysql_async` serves binlog, scans and bulk apply; `sqlx` serves checks, control tables and small
//! queries.

use std::path::Path;

use anabranch_pipeline::config::ServerUrl;
use mysql_async::{OptsBuilder, SslOpts};
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

/// Returns options for `mysql_async`. Statements are text: the statement cache is off.
pub fn async_options(url: &ServerUrl, ca_file: Option<&Path>) -> OptsBuilder {
    let tls = ca_file.map(|file| {
        SslOpts::default().with_root_certs(vec![file.to_owned().into()]).with_disable_built_in_roots(true)
    });
    OptsBuilder::default()
        .ip_or_hostname(url.host())
        .tcp_port(url.port())
        .user(Some(url.user()))
        .pass(Some(url.password().expose()))
        .prefer_socket(false)
        .stmt_cache_size(0)
        .ssl_opts(tls)
}

/// Returns options for `sqlx`.
pub fn sqlx_options(url: &ServerUrl, ca_file: Option<&Path>) -> MySqlConnectOptions {
    let options = MySqlConnectOptions::new()
        .host(url.host())
        .port(url.port())
        .username(url.user())
        .password(url.password().expose());
    match ca_file {
        Some(file) => options.ssl_mode(MySqlSslMode::VerifyIdentity).ssl_ca(file),
        None => options.ssl_mode(MySqlSslMode::Disabled),
    }
}

/// Quotes an identifier: puts it in backticks, and doubles backticks in it.
pub fn quote_identifier(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// Returns `database`.`table`, quoted.
pub fn quote_table(database: &str, table: &str) -> String {
    format!("{}.{}", quote_identifier(database), quote_identifier(table))
}

/// Appends a string literal that means these bytes in any SQL mode and character set: `x'…'`.
pub fn push_bytes(sql: &mut String, bytes: &[u8]) {
    sql.push_str("x'");
    push_digits(sql, bytes);
    sql.push('\'');
}

/// Appends bytes as hexadecimal digits.
pub fn push_digits(sql: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for bytes in bytes.chunks(8) {
        let mut digits = [0; 16];
        for ([high, low], byte) in digits.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
            *high = DIGITS[usize::from(byte >> 4)];
            *low = DIGITS[usize::from(byte & 15)];
        }
        sql.push_str(std::str::from_utf8(&digits[..2 * bytes.len()]).expect("digits are ASCII"));
    }
}

/// Appends a number in decimal, several times as fast as the general formatting: a flush appends many numbers.
pub fn push_number(sql: &mut String, mut number: u64) {
    const DIGITS_MAX: usize = 20;
    let mut digits = [0; DIGITS_MAX];
    let mut start = DIGITS_MAX;
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    sql.push_str(std::str::from_utf8(&digits[start..]).expect("digits are ASCII"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_cannot_break_out_of_their_quotes() {
        assert_eq!(quote_identifier("a`; DROP TABLE b"), "`a``; DROP TABLE b`");
        assert_eq!(quote_table("d", "t"), "`d`.`t`");
    }

    #[test]
    fn bytes_are_written_as_hexadecimal() {
        let mut sql = String::new();
        push_bytes(&mut sql, b"a'\0\xff");
        assert_eq!(sql, "x'612700ff'");
        sql.clear();
        push_bytes(&mut sql, b"0123456789");
        assert_eq!(sql, "x'30313233343536373839'");
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        for number in [0, 7, 10, 1_234_567_890, u64::MAX] {
            let mut sql = String::new();
            push_number(&mut sql, number);
            assert_eq!(sql, number.to_string());
        }
    }
}
