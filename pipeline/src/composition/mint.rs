//! How the mint of uuids is put together: a free machine number, its lease, and a queue of orders.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Connectors, LogServer};
use crate::error::{Code, Fault};
use crate::identifiers::{MACHINES, Mint, UuidOrders};
use crate::ports::{Leases, Registers};
use crate::supervise::{Ready, TaskHandle, acquired_within, running_under, unless_cancelled};

/// Wait for a machine number; a free one is taken well within it.
const MACHINE_NUMBER_WAIT: Duration = Duration::from_secs(2);

/// Makes one attempt of the mint, under the lease of a machine number that is free. `now_ms` reads the wall clock.
pub async fn mint<C: Connectors>(
    connectors: &C,
    orders: &UuidOrders,
    now_ms: impl Fn() -> u64,
    handle: &TaskHandle,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let LogServer { registers, leases, .. } = connectors.log_server().await?;
    handle.waits_for("a free machine number");
    let Some((machine, lease)) = any_machine(leases, handle.name(), cancel).await? else { return Ok(()) };
    let work =
        async |ready: Ready| answer(registers, machine, orders, &now_ms, || ready.report(), cancel).await;
    running_under(lease, handle, work).await
}

/// Takes a free machine number at random, `None` on `cancel`; with so many the first is nearly always free.
async fn any_machine<L: Leases>(
    leases: &L,
    task: &str,
    cancel: &CancellationToken,
) -> Result<Option<(u16, L::Lease)>, Fault> {
    loop {
        let machine = rand::random_range(0..MACHINES);
        let key = format!("{task}/{machine}");
        let acquired = acquired_within(leases, &key, MACHINE_NUMBER_WAIT);
        match unless_cancelled(acquired, cancel).await? {
            Some(Some(lease)) => return Ok(Some((machine, lease))),
            Some(None) => {}
            None => return Ok(None),
        }
    }
}

/// Answers orders until `cancel` or a fault.
async fn answer(
    registers: &impl Registers,
    machine: u16,
    orders: &UuidOrders,
    now_ms: impl Fn() -> u64,
    ready: impl Fn(),
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let mut orders = orders.receiver.lock().await;
    let mut mint = Mint::open(registers, machine).await?;
    ready();
    loop {
        let order = tokio::select! {
            order = orders.recv() => order.expect("the sender stands beside the receiver"),
            () = cancel.cancelled() => return Ok(()),
        };
        // No request waits for it any more.
        if order.answer.is_closed() {
            continue;
        }
        let (now, count) = (now_ms(), order.count);
        let uuids = match &order.key {
            None => Ok(Some(mint.issue(now, count).await?)),
            Some(key) => match mint.issue_once(key, now, count).await {
                // This request alone is refused: the number's own register was set before.
                Err(fault) if fault.code() == Code::UuidsKeysFull => Err(fault),
                answered => Ok(answered?),
            },
        };
        order.answer.send(uuids).ok();
    }
}
