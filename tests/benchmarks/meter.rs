//! Time and CPU: of this process, and of servers by their process ids.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

/// Unit of a process's CPU times in Linux, whatever its kernel's own ticks are (`USER_HZ`).
const TICKS_A_SECOND: f64 = 100.0;

/// A server counts as idle below this number of CPUs; it polls even without work.
const IDLE_CPUS: f64 = 0.1;
const IDLE_SAMPLE: Duration = Duration::from_secs(1);
const IDLE_WAIT: Duration = Duration::from_secs(300);

/// Result of one measurement.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    pub seconds: f64,
    pub own_cpu_seconds: f64,
    pub server_cpu_seconds: f64,
}

/// A running measurement.
#[derive(Debug)]
pub struct Meter {
    servers: Vec<u32>,
    began: Instant,
    own_cpu_seconds: f64,
    server_cpu_seconds: f64,
}

impl Meter {
    /// Begins to measure this process and, by their ids, all servers together.
    pub fn start(servers: &[u32]) -> Self {
        Self {
            servers: servers.to_vec(),
            own_cpu_seconds: own_cpu_seconds(),
            server_cpu_seconds: servers.iter().copied().map(cpu_seconds).sum(),
            began: Instant::now(),
        }
    }

    pub fn stop(self) -> Measured {
        let seconds = self.began.elapsed().as_secs_f64();
        Measured {
            seconds,
            own_cpu_seconds: own_cpu_seconds() - self.own_cpu_seconds,
            server_cpu_seconds: self.servers.iter().copied().map(cpu_seconds).sum::<f64>()
                - self.server_cpu_seconds,
        }
    }
}

/// Waits until the servers have finished earlier work, so that the measurement has the machine to itself.
pub async fn until_idle(servers: &[u32]) {
    let deadline = Instant::now() + IDLE_WAIT;
    loop {
        let meter = Meter::start(servers);
        tokio::time::sleep(IDLE_SAMPLE).await;
        let measured = meter.stop();
        if measured.server_cpu_seconds / measured.seconds < IDLE_CPUS {
            return;
        }
        assert!(Instant::now() < deadline, "the servers are busy for {IDLE_WAIT:?}");
    }
}

fn own_cpu_seconds() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("a process may ask for its own usage");
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|time| {
            let seconds = Duration::from_secs(time.tv_sec() as u64);
            (seconds + Duration::from_micros(time.tv_usec() as u64)).as_secs_f64()
        })
        .sum()
}

/// CPU time of all threads of a process in seconds, with those that have ended.
pub fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the server runs");
    // The program's name, in parentheses, may hold blanks; user and system time are the 12th and 13th field after it.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / TICKS_A_SECOND
}

/// Peak resident memory of a process in bytes; `None` when it has ended.
pub fn resident_bytes_max(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

/// The median; of an even number of values, the mean of the middle two.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}
