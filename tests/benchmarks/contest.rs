//! The product in turn with a program written by hand for exactly the same work: runs of both, and their line.

use serde_json::json;

use crate::meter::{Measured, median};
use crate::report::Line;

/// A way to do the work by hand, with its runs.
#[derive(Debug)]
pub struct Hand {
    pub how: String,
    pub runs: Vec<Measured>,
}

impl Hand {
    pub fn new(how: String) -> Self {
        Self { how, runs: Vec::new() }
    }
}

/// The runs of the product and of each way by hand; runs of one round have the same index.
#[derive(Debug)]
pub struct Contest {
    pub figure: &'static str,
    /// The unit of counting, such as `rows`, and the number of units in a run.
    pub unit: &'static str,
    pub count: u64,
    /// The servers whose CPU was measured.
    pub servers: &'static str,
    /// Least share of the fastest hand-written way's rate.
    pub bar: f64,
    pub products: Vec<Measured>,
    pub hands: Vec<Hand>,
}

impl Contest {
    pub fn line(self) -> Line {
        let Self { figure, unit, count, servers, bar, products, hands } = self;
        let best = hands.iter().min_by(|one, two| seconds(&one.runs).total_cmp(&seconds(&two.runs)));
        let best = best.expect("there is at least one way");
        let ratio =
            median(products.iter().zip(&best.runs).map(|(product, hand)| hand.seconds / product.seconds));
        let count = count as f64;
        let own = |runs: &[Measured]| median(runs.iter().map(|run| run.own_cpu_seconds)) * 1e6 / count;
        let server = |runs: &[Measured]| median(runs.iter().map(|run| run.server_cpu_seconds)) * 1e6 / count;
        let rate = |runs: &[Measured]| {
            format!("{:.1} s, {:.1} k {unit}/s", seconds(runs), count / seconds(runs) / 1e3)
        };
        let all = |runs: &[Measured]| runs.iter().map(|run| run.seconds).collect::<Vec<_>>();
        Line {
            figure,
            measured: rate(&products),
            limit: format!("by hand, {}: {}", best.how, rate(&best.runs)),
            ratio: format!("{:.0} %", ratio * 100.0),
            cpu: format!("client {:.2}, {servers} {:.2}", own(&products), server(&products)),
            bar: format!("≥ {:.0} %", bar * 100.0),
            passes: Some(ratio >= bar),
            detail: json!({
                "ratio": ratio, "count": count, "unit": unit, "seconds": all(&products),
                "client_cpu_us": own(&products), "server_cpu_us": server(&products),
                "by_hand": hands.iter().map(|hand| json!({
                    "how": hand.how, "seconds": all(&hand.runs),
                    "client_cpu_us": own(&hand.runs), "server_cpu_us": server(&hand.runs),
                })).collect::<Vec<_>>(),
            }),
        }
    }
}

fn seconds(runs: &[Measured]) -> f64 {
    median(runs.iter().map(|run| run.seconds))
}
