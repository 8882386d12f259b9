//! The register that holds the ledger's last token: a text in the log's bucket, outside of the ledger's server.
//!
//! A lost bucket makes the ledger look restored, so the day stops with a named fault and grants nothing twice.

use anabranch_coupons::ports::Register;
use anabranch_coupons::records::Unique;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::Registers;

use crate::wiring::Wiring;

/// The key of the register.
const KEY: &str = "coupon-ledger";

/// The register of the ledger's token.
#[derive(Clone)]
pub struct LedgerRegister(pub Wiring);

/// Parses a token; a register that was never set holds the token of an unused ledger.
fn token(value: &str) -> Result<Unique, Fault> {
    if value.is_empty() {
        return Ok(Unique(0));
    }
    let odd = |_| {
        Fault::new(Code::LogForeign, format!("register {KEY}"), "its value is no token of a ledger")
            .needs("a bucket that nobody else writes")
    };
    u128::from_str_radix(value, 16).map(Unique).map_err(odd)
}

impl Register for LedgerRegister {
    async fn read(&self) -> Result<Unique, Fault> {
        token(&self.0.log().await?.read(KEY).await?.value)
    }

    async fn swap(&self, expected: Unique, next: Unique) -> Result<bool, Fault> {
        let log = self.0.log().await?;
        let known = log.read(KEY).await?;
        if token(&known.value)? != expected {
            return Ok(false);
        }
        match log.compare_and_set(KEY, &known, format!("{:032x}", next.0)).await {
            Ok(_) => Ok(true),
            Err(fault) if fault.code() == Code::LeaseLost => Ok(false),
            Err(fault) => Err(fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_is_written_and_anything_else_is_refused() {
        let written = format!("{:032x}", u128::MAX - 5);
        assert_eq!(token(&written).unwrap(), Unique(u128::MAX - 5));
        assert_eq!(token("").unwrap(), Unique(0));
        assert_eq!(token("not a token").unwrap_err().code(), Code::LogForeign);
    }
}
