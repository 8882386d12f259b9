//! Counters of payment documents on the target's server, for the drill that needs them.

use anabranch_demo::{JsonClient, daemon as product};
use jiff::Timestamp;
use reqwest::Method;
use serde_json::json;

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
/// The path at which applications order identifiers.
const ORDERS: &str = "v1/flux/identifiers";

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
        self.until_refusals_scraped().await
    }

    /// Orders an identifier, and expects that the counter refuses it or gives one out.
    pub(super) async fn order_identifier(&self, is_refused: bool) -> Result<()> {
        self.expect_order(1, is_refused).await
    }

    async fn expect_order(&self, count: u32, is_refused: bool) -> Result<()> {
        let order = json!({ "kind": "recharge", "partition": PARTITION, "business": 1, "count": count });
        let daemon = JsonClient::without_tls("the daemon", format!("http://127.0.0.1:{}", self.main.port()))?;
        match daemon.with_token(TOKEN).ask("order identifiers", Method::POST, ORDERS, order).await {
            Ok(_) if is_refused => Err(GamedayError::AnswerUnfit {
                server: "the daemon",
                reason: "it gave identifiers out whose counter lacks numbers".to_owned(),
            }),
            Err(error) if is_refused && error.to_string().contains(REFUSED) => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
    }

    /// Waits until Prometheus has the counter of refusals as the daemon has it now: an alert on an increase needs the
    /// value before it.
    async fn until_refusals_scraped(&self) -> Result<()> {
        let asked = Timestamp::now().as_millisecond();
        let counter = format!("anabranch_flux_refusals_total{{job=\"anabranch\", code=\"{REFUSED}\"}}");
        let scraped_since = format!("timestamp({counter}) * 1000 > {asked}");
        self.until_scraped(&scraped_since, "the counter of refused orders").await
    }
}
