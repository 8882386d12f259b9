//! Payment documents that a retention job deletes row by row: they pass to the heir of their table.

use anabranch_pipeline::ports::RelationStore as _;
use anabranch_schemas::change::Action;
use anabranch_schemas::flux::id::FluxId;

use super::{Document, Ground, Writer, foreign_and_retired, id, stored};

/// Number of the table that stands for the heir of table 1.
const HEIR: u32 = 7;

pub(super) async fn documents_that_a_retention_job_deleted_stand_as_those_of_a_retired_table(
    ground: impl Ground,
) {
    let mut writer = Writer::of(&ground).await;
    // Each of them stands in two tables, as its parent has another partition.
    let documents = [1, 2, 3].map(|sequence| (1, Document::of(5, sequence, Some(id(15, 9)))));
    writer.insert(&documents).await;
    // The reader records two transactions of the job, and the heir before the rows that pass to it.
    for (_, document) in &documents[..2] {
        let row = document.row();
        let event = vec![
            (1, Action::Delete { before: row.clone() }),
            (HEIR, Action::Retire),
            (HEIR, Action::Insert { after: row }),
        ];
        writer.events(vec![event]).await;
    }
    let [first, second, third] = documents.clone();
    let (index, ids) = (ground.index(), documents.each_ref().map(|(_, document)| document.id));
    let ids: &[FluxId] = &ids;
    let moved = [(HEIR, first.1.clone()), (HEIR, second.1.clone()), third];
    assert_eq!(index.documents(ids).await.unwrap(), stored(&moved));
    assert_eq!(foreign_and_retired(&ground, &[1]).await, (vec![3, 3], vec![1, 1, 2, 2]));

    // Neither a repair that finds none of them nor the sweep of a refresh removes them.
    writer.replace(1, &[1, 2]).await;
    writer.change(vec![(1, Action::Withdraw)]).await;
    assert_eq!(index.documents(ids).await.unwrap(), stored(&moved[..2]));
    assert_eq!(foreign_and_retired(&ground, &[1]).await, (vec![], vec![1, 1, 2, 2]));

    // A document that comes back is a row of its table again, and an ordinary deletion ends that row alone.
    writer.insert(std::slice::from_ref(&first)).await;
    assert_eq!(foreign_and_retired(&ground, &[1]).await, (vec![1, 1], vec![1, 1, 2, 2]));
    writer.change(vec![(1, Action::Delete { before: first.1.row() })]).await;
    assert_eq!(foreign_and_retired(&ground, &[1]).await, (vec![], vec![1, 1, 2, 2]));
}
