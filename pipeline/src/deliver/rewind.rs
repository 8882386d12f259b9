//! Sets a lane back, so that it applies a part of the past once more.
//!
//! Only the progress row changes; whoever runs the lane is fenced by that and begins again from there. Rows keep
//! their versions, so what is applied twice ends as it was.

use anabranch_schemas::lsn::Lsn;

use super::{Flush, LaneId, Progress};
use crate::error::{Code, Fault};
use crate::ports::{LaneStore, Located};

/// A busy lane commits while this is decided; each attempt reads its progress again.
const ATTEMPTS: u32 = 50;

/// Where a lane is set to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rewind {
    /// Everything above this place is applied again.
    To(Located),
    /// Its rows are removed, and it begins as a new lane does.
    ToNothing,
}

/// Sets the lane back; returns its progress before. With `is_rehearsal` nothing is changed.
///
/// A lane goes back only: what it would skip going forward would be missing for ever. One that has not begun may be
/// set anywhere, since the operator thereby says where it begins.
pub async fn rewind(
    id: &LaneId,
    store: &mut impl LaneStore,
    to: &Rewind,
    is_rehearsal: bool,
) -> Result<Progress, Fault> {
    let mut attempt = 1;
    loop {
        let before = store.load().await?;
        let after = match to {
            Rewind::To(place) => {
                let is_back = place.position < before.position;
                let has_begun = before.highest_position > Lsn::ZERO;
                if has_begun && !is_back {
                    let found = format!("{} is not behind its position {}", place.position, before.position);
                    return Err(Fault::new(Code::ReplayRefused, format!("lane {id}"), found)
                        .needs("a place in the past: a lane that skips changes would be wrong for ever"));
                }
                before.rewound(place.position, place.resume.clone(), place.server.clone())
            }
            Rewind::ToNothing => before.rewound(Lsn::ZERO, Default::default(), Default::default()),
        };
        if is_rehearsal {
            return Ok(before);
        }
        match store.commit(&Flush::new(after)).await {
            Err(fault) if fault.code() == Code::TargetFenced && attempt < ATTEMPTS => attempt += 1,
            ended => return ended.map(|()| before),
        }
    }
}
