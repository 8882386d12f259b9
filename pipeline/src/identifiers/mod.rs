//! Uuids of devices: unique over many machines, roughly ordered by time, evenly spread by any small divisor.
//!
//! From high to low: 0 (1 bit, so that a signed BIGINT takes it) | instant (41, milliseconds since 2025: 69 years) |
//! the pair machine (10: 1,024 at once), sequence (12: 4,096 a millisecond, 4 million a second a machine), *permuted*.
//! Each instant has its own permutation. Without it the low bits would hold the sequence, which is 0 at low rates, and
//! all rows would lie in table 0. One sequence over all instants is no cure: at 1,000 a second it moves in step with
//! them, and `% 5` stands still. Uuids are unique because (instant, machine, sequence) ↔ uuid is one to one: the
//! instant is readable, and within it a permutation is a bijection. `mint.rs` uses no (machine, instant, sequence)
//! twice.

pub mod flux;
mod mint;
mod orders;
#[cfg(test)]
mod spread;

pub use self::mint::Mint;
pub use self::orders::{ORDERS_MAX, UuidOrder, UuidOrders};

/// 2025-01-01T00:00:00Z, milliseconds since the Unix epoch: instant 0.
pub const EPOCH_MS: u64 = 1_735_689_600_000;
/// Machine numbers; each is held by one process at a time.
pub const MACHINES: u16 = 1 << MACHINE_BITS;

const INSTANT_BITS: u32 = 41;
const MACHINE_BITS: u32 = 10;
const SEQUENCE_BITS: u32 = 12;
const LOW_BITS: u32 = MACHINE_BITS + SEQUENCE_BITS;
const LOW_MASK: u64 = (1 << LOW_BITS) - 1;

/// Makes the uuid of a slot of a machine: an instant and the sequence in it.
fn compose(machine: u16, place: u64) -> u64 {
    let (instant, sequence) = (place >> SEQUENCE_BITS, place & ((1 << SEQUENCE_BITS) - 1));
    (instant << LOW_BITS) | permute(instant, (u64::from(machine) << SEQUENCE_BITS) | sequence)
}

/// Permutes the low 22 bits; each step has an inverse: XOR with a constant, an odd factor, XOR with a shift to the
/// right.
fn permute(instant: u64, low: u64) -> u64 {
    let key = hash(instant);
    let mut mixed = low ^ (key & LOW_MASK);
    for factor in [0x2c_1b3d, 0x29_7a2d] {
        mixed = mixed.wrapping_mul(factor) & LOW_MASK;
        mixed ^= mixed >> (LOW_BITS / 2);
    }
    mixed ^ (key >> (u64::BITS - LOW_BITS))
}

/// Hashes an instant with SplitMix64's finisher: neighbouring instants get unlike keys.
fn hash(instant: u64) -> u64 {
    let mut mixed = instant.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_an_instant_no_two_pairs_share_a_uuid() {
        for instant in [0, 1, (1 << INSTANT_BITS) - 1] {
            let mut seen = vec![false; 1 << LOW_BITS];
            for low in 0..1 << LOW_BITS {
                let mixed = permute(instant, low) as usize;
                assert!(!std::mem::replace(&mut seen[mixed], true), "{low} in {instant}");
            }
        }
    }

    #[test]
    fn a_uuid_fits_a_signed_bigint_and_is_ordered_by_its_instant() {
        let last = compose(MACHINES - 1, (1 << (INSTANT_BITS + SEQUENCE_BITS)) - 1);
        assert!(i64::try_from(last).is_ok());
        for instant in 0..1_000 {
            let (now, next) = (instant << SEQUENCE_BITS, (instant + 1) << SEQUENCE_BITS);
            assert!(compose(MACHINES - 1, now | 4_095) < compose(0, next));
        }
    }
}
