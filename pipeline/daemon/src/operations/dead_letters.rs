//! Another try of documents that a search index rejected: lanes go back to before their oldest letter.

use std::collections::BTreeMap;

use anabranch_pipeline::deliver::rewind;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::BinlogPoint;
use anabranch_pipeline::records::LaneId;
use anabranch_schemas::lsn::Lsn;

use super::{Actor, CommandText, Recorded, past, recorded};
use crate::wiring::{DeadLetter, Documents, Wiring};

/// Letters that one command reads, at most: the oldest.
pub const LETTERS_MAX: usize = 10_000;

/// Rejected documents that are to be tried again.
#[derive(Debug, Clone)]
pub struct RetryRequest {
    /// Only letters of this projection; `None` = of every projection with documents.
    pub projection: Option<String>,
}

impl RetryRequest {
    /// Returns the command in words.
    pub fn command(&self) -> String {
        CommandText::of("dead-letters retry").option("--projection", self.projection.as_deref()).text()
    }

    /// Returns which lanes would go back.
    pub async fn rehearse(&self, wiring: &Wiring) -> Result<Vec<String>, Fault> {
        let letters = self.letters(wiring).await?;
        go_back(wiring, &letters, true).await
    }

    /// Sets the lanes back.
    pub async fn carry_out(&self, wiring: &Wiring, actor: &Actor) -> Result<Recorded<Vec<String>>, Fault> {
        let letters = self.letters(wiring).await?;
        let counts = letters
            .iter()
            .map(|(documents, letters)| format!("{}: {} dead letters", documents.projection, letters.len()));
        let before = counts.collect::<Vec<_>>().join("\n");
        let work = go_back(wiring, &letters, false);
        let after = |lines: &Vec<String>| lines.join("\n");
        recorded(wiring, actor, (self.command(), Some(before)), work, after).await
    }

    async fn letters(&self, wiring: &Wiring) -> Result<Vec<(Documents, Vec<DeadLetter>)>, Fault> {
        let mut letters = Vec::new();
        for documents in chosen(wiring, self.projection.as_deref())? {
            let of_projection = documents.target.dead_letters(&documents.projection, LETTERS_MAX).await?;
            letters.push((documents, of_projection));
        }
        Ok(letters)
    }
}

/// Returns the documents of a projection, or of every projection that has some.
pub fn chosen(wiring: &Wiring, projection: Option<&str>) -> Result<Vec<Documents>, Fault> {
    match projection {
        Some(projection) => wiring.documents_of(projection).map(|documents| vec![documents]),
        None => Ok(wiring.all_documents().collect()),
    }
}

/// Sets each lane back to before its oldest letter; returns a sentence about each.
async fn go_back(
    wiring: &Wiring,
    letters: &[(Documents, Vec<DeadLetter>)],
    is_rehearsal: bool,
) -> Result<Vec<String>, Fault> {
    let mut oldest: BTreeMap<LaneId, u64> = BTreeMap::new();
    for (documents, letters) in letters {
        for letter in letters {
            let id = LaneId {
                projection: letter.projection.clone(),
                target: documents.target.name().to_owned(),
                source: letter.source.clone(),
                lane: letter.lane,
            };
            let lsn = oldest.entry(id).or_insert(letter.lsn);
            *lsn = letter.lsn.min(*lsn);
        }
    }
    let mut lines = Vec::new();
    for (id, lsn) in oldest {
        let odd =
            |_| Fault::new(Code::TargetTableShape, format!("dead letter of {id}"), "it has no position");
        let position = Lsn::from_u64(lsn).map_err(odd)?;
        let to = past(wiring, &id.source).await?.resolve(BinlogPoint::Lsn(position)).await?;
        let before = rewind(&id, &mut wiring.lane(&id)?, &to, is_rehearsal).await?;
        let verb = if is_rehearsal { "would go" } else { "goes" };
        lines.push(format!("lane {id} {verb} back from {} to before {position}", before.position));
    }
    Ok(lines)
}
