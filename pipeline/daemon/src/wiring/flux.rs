//! Identifiers of payment documents: counters on a MySQL server, and their registers in the log.

use std::sync::Arc;

pub use anabranch_connectors::mysql::sequence::MysqlSequence as FluxSequence;
use anabranch_connectors::mysql::store::SetupReport;
use anabranch_pipeline::config::{Config, FluxIdentifierConfig};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::identifiers::flux::{
    CapturedNumbers, FluxIssuer, FluxOrder, FluxSettings, RaiseOutcome, SequenceState, raise, state,
};
use anabranch_pipeline::records::RequestKey;
use anabranch_schemas::flux::id::FluxId;
use jiff::Timestamp;
use jiff::civil::Date;

use super::Wiring;
use crate::wall_clock;

/// The maker of identifiers in this process, with the ranges that it has leased. Cheap to clone.
#[derive(Clone)]
pub struct FluxIdentifiers {
    wiring: Wiring,
    config: Arc<FluxIdentifierConfig>,
    issuer: Arc<FluxIssuer<FluxSequence>>,
}

fn settings(config: &FluxIdentifierConfig) -> FluxSettings {
    FluxSettings { region: config.region, system: config.system }
}

/// Returns what the readers of this process fill with numbers; `None` when the configuration makes no identifiers.
pub(super) fn captured_numbers(config: &Config) -> Option<CapturedNumbers> {
    config.flux_identifiers().map(|config| CapturedNumbers::new(settings(config)))
}

impl FluxIdentifiers {
    /// Returns the maker, not connected yet; `None` when the configuration makes none.
    pub fn new(wiring: &Wiring) -> Option<Self> {
        Self::with(wiring, |issuer| issuer)
    }

    fn with(
        wiring: &Wiring,
        adapt: impl FnOnce(FluxIssuer<FluxSequence>) -> FluxIssuer<FluxSequence>,
    ) -> Option<Self> {
        let config = wiring.config().flux_identifiers()?.clone();
        let settings = settings(&config);
        let years = wiring.config().flux.as_ref().and_then(|flux| flux.years);
        let issuer = FluxIssuer::new(FluxSequence::new(&config), settings).with_years(years);
        let issuer = Arc::new(adapt(issuer));
        Some(Self { wiring: wiring.clone(), config: Arc::new(config), issuer })
    }

    /// Returns the system code that identifiers have.
    pub fn system(&self) -> u16 {
        self.config.system
    }

    /// Returns as many new identifiers as are wanted; with a key the same ones each time.
    pub async fn issue(&self, key: Option<&RequestKey>, order: &FluxOrder) -> Result<Vec<FluxId>, Fault> {
        let (log, today) = (self.wiring.log().await?, self.today());
        match key {
            None => self.issuer.issue(log, order, today).await,
            Some(key) => self.issuer.issue_once(log, key, order, today).await,
        }
    }

    /// Returns counters and registers as they are.
    pub async fn state(&self) -> Result<SequenceState, Fault> {
        state(self.wiring.log().await?, self.issuer.sequence(), self.config.region).await
    }

    /// Skips numbers of every counter, and accepts the server.
    pub async fn raise(&self, skipped: u32) -> Result<RaiseOutcome, Fault> {
        raise(self.wiring.log().await?, self.issuer.sequence(), self.config.region, skipped).await
    }

    /// Shows the share that the fullest counter has used today.
    pub fn show_used(&self) {
        self.issuer.show_used(self.today());
    }

    fn today(&self) -> Date {
        let now =
            i64::try_from(wall_clock::now_ms()).ok().and_then(|now| Timestamp::from_millisecond(now).ok());
        now.unwrap_or(Timestamp::MAX).to_zoned(self.config.time_zone.clone()).date()
    }
}

impl Wiring {
    /// Returns a maker without a reserve, for a command that needs it.
    pub fn flux_identifiers(&self) -> Result<FluxIdentifiers, Fault> {
        FluxIdentifiers::with(self, FluxIssuer::without_reserve).ok_or_else(|| {
            Fault::new(Code::FluxUnconfigured, "configuration key flux", "no region and no sequence_url")
                .needs("a [flux] section with both: the region, and the server with the counters")
                .remedy("see [flux] in deploy/anabranch.example.toml")
        })
    }

    /// Creates the tables of the sequence; returns a line about them.
    pub async fn set_up_flux(&self) -> Result<Vec<String>, Vec<Fault>> {
        let one = |fault| vec![fault];
        let flux = self.flux_identifiers().map_err(one)?;
        let made = flux.issuer.sequence().setup().await.map_err(one)?;
        let thing = "counters of flux.sequence_url";
        Ok(vec![match made == SetupReport::default() {
            true => format!("{thing}: as needed"),
            false => format!("{thing}: created {} databases, {} tables", made.databases, made.tables),
        }])
    }

    /// Does the pre-flight of the sequence: tables, rows, durability, privileges, and whether a counter lacks numbers
    /// that were given out.
    pub async fn check_flux(&self) -> Vec<Fault> {
        let flux = match self.flux_identifiers() {
            Ok(flux) => flux,
            Err(fault) => return vec![fault],
        };
        let faults = flux.issuer.sequence().check().await;
        if !faults.is_empty() {
            return faults;
        }
        flux.state().await.map_or_else(|fault| vec![fault], |state| state.faults())
    }
}
