//! Asks each server once an hour when its certificate ends. Sources say it together with their binlogs (`poll.rs`).

use std::time::Duration;

use anabranch_pipeline::config::{Config, ServerUrl, TargetStore};
use anabranch_pipeline::error::Fault;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::dependencies::COUPON_SYSTEM;
use super::headroom::certificate_end;
use super::polling::{LOG, every_interval, within};
use super::{Dependency, Observatory};
use crate::wiring::{Wiring, certificate_ends};

const INTERVAL: Duration = Duration::from_secs(3600);
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Starts a loop for each target and cache, for the log and for the coupon system.
pub(super) fn spawn(
    loops: &mut JoinSet<()>,
    wiring: &Wiring,
    observatory: &Observatory,
    cancel: &CancellationToken,
) {
    let mysql = wiring.config().targets.iter().filter(|target| target.store == TargetStore::Mysql);
    for target in mysql {
        let (wiring, observatory, name) = (wiring.clone(), observatory.clone(), target.name.clone());
        loops.spawn(every_interval(INTERVAL, cancel.clone(), async move || {
            let ends = until_answered(|| within(Dependency::Target, &name, wiring.certificate_ends(&name)));
            let ends = ends.await.as_deref().and_then(certificate_end);
            observatory.certificate_seen(Dependency::Target, &name, ends);
        }));
    }
    for (kind, name, url) in silent_servers(wiring.config()) {
        let (observatory, url) = (observatory.clone(), url.clone());
        loops.spawn(every_interval(INTERVAL, cancel.clone(), async move || {
            let ends =
                until_answered(|| within(kind, &name, certificate_ends(&url, kind.unreachable()))).await;
            observatory.certificate_seen(kind, &name, ends);
        }));
    }
}

/// Asks each minute until the server answers.
async fn until_answered<T, F: Future<Output = Result<T, Fault>>>(question: impl Fn() -> F) -> T {
    loop {
        match question().await {
            Ok(answer) => return answer,
            Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
        }
    }
}

/// Returns the servers that do not say when their certificate ends, so that a handshake must show it.
fn silent_servers(config: &Config) -> Vec<(Dependency, String, &ServerUrl)> {
    let indexes = config.targets.iter().filter(|target| target.store == TargetStore::Search);
    let indexes = indexes.map(|target| (Dependency::Target, target.name.clone(), &target.url));
    let caches = config.caches.iter().map(|cache| (Dependency::Cache, cache.name.clone(), &cache.url));
    let log = (Dependency::Log, LOG.to_owned(), &config.log.url);
    let coupons = config.coupon_system.iter();
    let coupons = coupons.map(|system| (Dependency::CouponSystem, COUPON_SYSTEM.to_owned(), &system.url));
    indexes.chain(caches).chain([log]).chain(coupons).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coupon_system_is_asked_for_its_certificate_too() {
        let example = include_str!("../../../../deploy/anabranch.example.toml");
        let text = example.replace("#[coupon_system]\n#url", "[coupon_system]\nurl");
        let config = Config::parse(&text).unwrap_or_else(|faults| panic!("{faults:?}"));
        let servers = silent_servers(&config);
        let last = servers.last().map(|(kind, name, url)| (*kind, name.as_str(), url.scheme()));
        assert_eq!(last, Some((Dependency::CouponSystem, COUPON_SYSTEM, "https")));
    }
}
