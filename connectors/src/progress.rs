//! The progress row of a lane, as every kind of target stores it: the lanes and the layout that it was made for, and
//! the check that Anabranch wrote it. `fields.rs` lists the row's fields once for all stores.

use std::collections::{BTreeSet, HashSet};

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::projections::{Assignment, Assignments};
use anabranch_pipeline::records::{LaneId, Progress};

pub(crate) use fields::{Value, columns, row, written};

mod fields;
mod words;

/// A progress row as a target stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredProgress {
    pub projection: String,
    pub source: String,
    pub lane: u32,
    /// Number of lanes that the row was made for.
    pub lanes: u32,
    /// Layout that the row was made for.
    pub layout: String,
    pub progress: Progress,
    /// The row's checksum is right, or an operator has taken it out.
    pub is_trusted: bool,
}

impl StoredProgress {
    /// Returns the progress from which the lane resumes, if the row is whole and made for the lane.
    pub(crate) fn assigned_to(self, subject: &str, assignment: &Assignment) -> Result<Progress, Fault> {
        if !self.is_trusted {
            return Err(self.damaged(subject));
        }
        match self.mismatch(subject, assignment.lanes, &assignment.fingerprint()) {
            Some(fault) => Err(fault),
            None => Ok(self.progress),
        }
    }

    /// Returns the fault for a row that is not trusted: no lane may resume from it.
    pub fn damaged(&self, subject: &str) -> Fault {
        let row = format!("{subject}, progress of {}/{}/{}", self.projection, self.source, self.lane);
        Fault::new(
            Code::TargetProgressCorrupt,
            row,
            "its checksum is wrong: it was changed by hand or damaged",
        )
        .needs("the row as Anabranch wrote it")
        .remedy(format!(
            "restore it; or `anabranch --config FILE begin-anew --source {} --lost-progress`: its lanes with \
                 damaged progress go on at the stream's end and read all tables",
            self.source
        ))
    }

    /// Returns why the row does not belong to these lanes and this layout; `None` if it does.
    pub(crate) fn mismatch(&self, subject: &str, lanes: u32, layout: &str) -> Option<Fault> {
        let row = format!("{subject}, progress of {}/{}/{}", self.projection, self.source, self.lane);
        if self.lanes != lanes {
            let found = format!("it was made for {} lanes", self.lanes);
            return Some(
                Fault::new(Code::TargetProgressLost, row, found).needs(format!("{lanes} lanes")).remedy(
                    format!(
                        "set `lanes = {}` for projection {}, or {BUILD_BESIDE}",
                        self.lanes, self.projection
                    ),
                ),
            );
        }
        (self.layout != layout).then(|| {
            Fault::new(Code::TargetProgressLost, row, format!("it was made for the layout `{}`", self.layout))
                .needs(format!("the configured layout `{layout}`"))
                .remedy(format!("set the projection's layout back, or {BUILD_BESIDE}"))
        })
    }
}

/// The way to another number of lanes or another layout: the stored tables serve until the new ones are filled.
pub(crate) const BUILD_BESIDE: &str = "give the changed projection another name and other databases, tables or \
     index, run `anabranch --config FILE setup`, and switch the application once it is filled";

/// Returns the command that creates tables or an index that are gone, and fills them.
pub(crate) fn refill(projection: &str) -> String {
    format!(
        "`anabranch --config FILE setup --refill {projection}`: it creates what is missing, and the lanes of \
         {projection} read all tables again"
    )
}

/// The command that stores progress for lanes that have none.
pub(crate) const BEGIN_LOST: &str = "`anabranch --config FILE begin-anew --source NAME --lost-progress`: its lanes \
     without progress go on at the stream's end and read all tables";

/// Lanes that a target knows: their progress, and the pairs (projection, source) that ever had a progress row.
#[derive(Debug)]
pub(crate) struct Enrolment {
    /// The target's name for the store of progress, as faults show it.
    place: String,
    pub(crate) rows: Vec<StoredProgress>,
    pub(crate) enrolled: HashSet<(String, String)>,
}

impl Enrolment {
    pub(crate) fn at(place: String) -> Self {
        Self { place, rows: Vec::new(), enrolled: HashSet::new() }
    }

    pub(crate) fn row(&self, lane: &LaneId) -> Option<&StoredProgress> {
        self.rows.iter().find(|row| {
            row.projection == lane.projection && row.source == lane.source && row.lane == lane.lane
        })
    }

    /// Whether progress rows of that source were ever made here.
    pub(crate) fn knows(&self, projection: &str, source: &str) -> bool {
        self.enrolled.contains(&(projection.to_owned(), source.to_owned()))
            || self.rows.iter().any(|row| row.projection == projection && row.source == source)
    }

    pub(crate) fn knows_projection(&self, projection: &str) -> bool {
        self.enrolled.iter().any(|(name, _)| name == projection)
            || self.rows.iter().any(|row| row.projection == projection)
    }

    /// Whether any lane of the projection has applied anything.
    pub(crate) fn has_moved(&self, projection: &str) -> bool {
        self.rows.iter().any(|row| row.projection == projection && row.progress.revision > 0)
    }

    /// Returns the decision that a lane needs from an operator: its row is lost or was made for something else.
    pub(crate) fn loss(&self, subject: &str, assignment: &Assignment, lane: &LaneId) -> Option<Fault> {
        let mismatch =
            |row: &StoredProgress| row.mismatch(subject, assignment.lanes, &assignment.fingerprint());
        match self.row(lane) {
            Some(row) => mismatch(row),
            None if self.knows(&lane.projection, &lane.source) => {
                // If the number of lanes was raised, other lanes' rows give a better fault than "gone".
                let other =
                    self.rows.iter().find(|r| r.projection == lane.projection && r.source == lane.source);
                Some(other.and_then(mismatch).unwrap_or_else(|| self.lost(lane)))
            }
            None => None,
        }
    }

    fn lost(&self, lane: &LaneId) -> Fault {
        let found = format!("its row in {} does not exist any more", self.place);
        Fault::new(Code::TargetProgressLost, format!("lane {lane}"), found)
            .needs("the row, which alone says which changes the derived rows have")
            .remedy(format!("restore progress together with the derived rows; or {BEGIN_LOST}"))
    }

    /// Returns the lanes of a source whose row is missing or damaged; none if any row of them was made for another
    /// layout or number of lanes, or if set-up has yet to make rows of a new source.
    pub(crate) fn lost_lanes(&self, assignment: &Assignment, target: &str, source: &str) -> Vec<LaneId> {
        let layout = assignment.fingerprint();
        let is_other = |row: &StoredProgress| row.lanes != assignment.lanes || row.layout != layout;
        let is_of_source = |row: &StoredProgress| row.projection == assignment.name && row.source == source;
        let is_new = self.knows_projection(&assignment.name) && !self.knows(&assignment.name, source);
        if is_new || self.rows.iter().any(|row| is_of_source(row) && is_other(row)) {
            return Vec::new();
        }
        let mut lanes = assignment.lane_ids(target);
        lanes.retain(|lane| lane.source == source && self.row(lane).is_none_or(|row| !row.is_trusted));
        lanes
    }

    /// Returns the pairs (projection, source) to store as enrolled before these lanes get other progress. Where nothing
    /// of a projection is known, all of its sources have lost theirs: set-up would take the others for new.
    pub(crate) fn pairs_of_lost<'a>(
        &self,
        assignments: &'a Assignments,
        lanes: &[(LaneId, Progress)],
    ) -> BTreeSet<(&'a str, &'a str)> {
        let mut pairs = BTreeSet::new();
        for (lane, _) in lanes {
            let Some(assignment) = assignments.of_lane(lane) else { continue };
            let is_unknown = !self.knows_projection(&assignment.name);
            let sources = assignment.sources.iter().filter(|source| is_unknown || **source == lane.source);
            pairs.extend(sources.map(|source| (assignment.name.as_str(), source.as_str())));
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored() -> StoredProgress {
        StoredProgress {
            projection: "birthday".into(),
            source: "source-a".into(),
            lane: 1,
            lanes: 2,
            layout: "by_day".into(),
            progress: Progress::default(),
            is_trusted: true,
        }
    }

    #[test]
    fn another_number_of_lanes_or_layout_does_not_fit() {
        assert!(stored().mismatch("target t", 2, "by_day").is_none());
        assert!(stored().mismatch("target t", 3, "by_day").unwrap().to_string().contains("`lanes = 2`"));
        assert!(stored().mismatch("target t", 2, "by_user").unwrap().to_string().contains("by_user"));
    }
}
