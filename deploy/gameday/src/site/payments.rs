//! Counters of payment documents on the target's server, for the drill that needs them.

use std::net::Ipv4Addr;
use std::time::Duration;

use anabranch_demo::daemon as product;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Site, blocking, write_private};
use crate::error::{GamedayError, Result};

/// The documented accounts of the counters' server.
const ACCOUNTS: &str = include_str!("../../../grants/mariadb-flux-sequence.sql");
/// Token of the application that makes payments.
const TOKEN: &str = "payments-of-the-game-day";
/// The user partition of its payments. The drill names the counter of this partition.
const PARTITION: u8 = 7;
/// Identifiers of its first order: as many as a range has, so that the next order needs another range.
const FIRST_ORDER: u32 = 1_000;
/// The code of an order that a counter refuses because it lacks numbers that were given out.
const REFUSED: &str = "flux-sequence-lagging";
/// Limit of an answer to an order.
const ORDER_MAX: Duration = Duration::from_secs(30);

impl Site {
    /// Makes the counters, starts the daemon with them, and orders the first identifiers. Returns when Prometheus has
    /// scraped the daemon.
    pub(super) async fn begin_payments(&mut self) -> Result<()> {
        let server = self.server("target")?;
        let password = server.password();
        let accounts: Vec<&str> = ACCOUNTS.lines().filter(|line| !line.starts_with("--")).collect();
        let accounts = accounts.join("\n").replace("{client_host}", "127.0.0.1");
        let accounts =
            accounts.replace("{setup_password}", password).replace("{sequence_password}", password);
        self.admin("target").await?.execute("make the accounts of the counters", accounts).await?;
        let url = |user: &str| format!("mysql://{user}:{password}@127.0.0.1:{}", server.port());
        let text = self.text.replacen("[http]\n", &format!("[http]\ntokens = [\"{TOKEN}\"]\n"), 1);
        let text = format!(
            "{text}\n[flux]\nregion = \"singapore\"\nsequence_url = \"{}\"\nsequence_setup_url = \"{}\"\n\
             sequence_ca_file = \"{}\"\n",
            url("anabranch_sequence"),
            url("anabranch_sequence_setup"),
            self.stack.ca_file().display()
        );
        write_private(&self.file, &text)?;
        blocking(|| product::Daemon::set_up(&self.binary, &self.file))?;
        self.start_with(&text).await?;
        self.expect_order(FIRST_ORDER, false).await?;
        tokio::time::sleep(self.scrape * 2).await;
        Ok(())
    }

    /// Orders an identifier, and expects that the counter refuses it or gives one out.
    pub(super) async fn order_identifier(&self, is_refused: bool) -> Result<()> {
        self.expect_order(1, is_refused).await
    }

    async fn expect_order(&self, count: u32, is_refused: bool) -> Result<()> {
        let answer = self.order(count).await?;
        let is_expected = match is_refused {
            true => answer.contains(REFUSED),
            false => answer.split(' ').nth(1) == Some("200"),
        };
        match is_expected {
            true => Ok(()),
            false => Err(unfit(answer)),
        }
    }

    /// Orders identifiers from the daemon as an application does; returns its answer with status and headers.
    async fn order(&self, count: u32) -> Result<String> {
        let body = json!({ "kind": "recharge", "partition": PARTITION, "business": 1, "count": count });
        let body = body.to_string();
        let request = format!(
            "POST /v1/flux/identifiers HTTP/1.0\r\nHost: anabranch\r\nConnection: close\r\n\
             Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let exchange = async {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.main.port())).await?;
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        match tokio::time::timeout(ORDER_MAX, exchange).await {
            Ok(answer) => answer.map_err(|error| unfit(error.to_string())),
            Err(_) => Err(GamedayError::Late {
                what: "the daemon answers an order of identifiers".to_owned(),
                seconds: ORDER_MAX.as_secs(),
            }),
        }
    }
}

fn unfit(reason: String) -> GamedayError {
    GamedayError::AnswerUnfit { server: "the daemon", reason }
}
