//! The coupon day in the daemon: `anabranch_coupons` decides, the connectors of `wiring/coupons.rs` carry out.
//!
//! `assembly.rs` puts them together. `dispatching.rs` is the task of a dispatcher, `granting.rs` that of a granter.
//! `cohort.rs` adds barrier and last good reconciliation to the birthday tables. `lane_lag.rs` says when a day leaves
//! the servers to the lanes, `lane_verdict.rs` shares that among all tasks of a process, and `pace.rs` says how many
//! batches are carried then. `holding.rs` holds messages while they wait, and `copies.rs` keeps copies of them out of
//! the queue. `mending.rs` asks the coupon system for what a restored ledger lacks. `register.rs` holds the ledger's
//! token, `day_view.rs` holds the newest day for display, `days.rs` begins days by hand, and `reports.rs` signs reports
//! of days.

mod assembly;
mod cohort;
mod copies;
mod day_view;
mod days;
mod dispatching;
mod granting;
mod holding;
mod lane_lag;
mod lane_verdict;
mod mending;
mod pace;
mod process;
mod register;
mod reports;

use anabranch_coupons::programme::Programme;
use anabranch_pipeline::config::{Config, EntityConfig};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::change::Entity;

pub use self::assembly::{cohort, dispatcher};
pub use self::cohort::DayTables;
pub use self::copies::PublishedRounds;
pub use self::day_view::{DayView, read as newest_day};
pub use self::days::{CouponDays, no_run};
pub use self::dispatching::{dispatcher_task, pass, spawn_dispatchers};
pub use self::granting::{GRANTER_TASK, spawn_granter};
pub use self::lane_lag::LaneLag;
pub use self::mending::{left_to_wait, mend};
pub use self::process::Process;
pub use self::register::LedgerRegister;
pub use self::reports::{ReportChain, Signed, SignedReport, signed};
pub use anabranch_coupons::dispatching::count;

/// Returns the programmes of a configuration.
pub fn programmes(config: &Config) -> Result<Vec<Programme>, Fault> {
    Programme::parse_all(&config.programmes).map_err(|faults| {
        let first = faults.into_iter().next();
        first.unwrap_or_else(|| Fault::new(Code::ConfigInvalid, "programmes", "they cannot be read"))
    })
}

/// Returns a fault for each programme whose cool-off has no effect, because no column says when a birthday was changed.
pub fn without_times_of_changes(config: &Config, programmes: &[Programme]) -> Vec<Fault> {
    let lacks = |entity: &&EntityConfig| entity.entity == Entity::User && entity.changed_at_column.is_none();
    let Some(lacking) = config.entities.iter().find(lacks) else { return Vec::new() };
    let with_cool_off = programmes.iter().filter(|programme| programme.cool_off_days > 0);
    let fault = |programme: &Programme| {
        let found = format!(
            "`cool_off_days` is {}, and no column of {} has the time at which a birthday was changed",
            programme.cool_off_days, lacking.tables
        );
        Fault::new(Code::ConfigInvalid, format!("programme {}", programme.name), found)
            .needs("`changed_at_column` in each [[entities]] entry of user, or no cool-off")
    };
    with_cool_off.map(fault).collect()
}

/// Returns the programme of this name.
pub fn programme(config: &Config, name: &str) -> Result<Programme, Fault> {
    let programmes = programmes(config)?;
    let names: Vec<&str> = programmes.iter().map(|programme| &*programme.name).collect();
    let needed = if names.is_empty() { "a [[programmes]] section".to_owned() } else { names.join(" or ") };
    programmes.into_iter().find(|programme| *programme.name == *name).ok_or_else(|| {
        Fault::new(Code::ConfigInvalid, format!("programme {name}"), "it is not in the configuration")
            .needs(needed)
    })
}
