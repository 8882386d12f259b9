//! The past of a source, into which a replay goes back.

use anabranch_pipeline::deliver::RewindSource;
use anabranch_pipeline::error::Fault;

use crate::wiring::{Log, Source, Wiring};

/// Returns the past of a source.
pub async fn past<'w>(
    wiring: &'w Wiring,
    source: &'w str,
) -> Result<RewindSource<'w, Source, Log, Log>, Fault> {
    let log = wiring.log().await?;
    Ok(RewindSource {
        source,
        connector: wiring.source(source)?,
        log,
        registers: log,
        start: &wiring.source_config(source)?.start,
    })
}
