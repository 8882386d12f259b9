//! Rows of payment documents that have outlived their retired table.

use anabranch_connectors::mysql::store::{Newest, Outlived};
use anabranch_schemas::change::Action;

use super::{Document, Ground, Server, Writer, foreign_and_retired};

/// Rows that have outlived their table go in steps, and the table is forgotten with the last one.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_have_outlived_their_table_go_in_steps_and_no_other_rows() {
    let ground = Server::start().await;
    let mut writer = Writer::of(&ground).await;
    let documents: Vec<_> = (1..=5).map(|sequence| (1, Document::of(5, sequence, None))).collect();
    writer.insert(&documents).await;
    writer.insert(&[(2, Document::of(5, 10, None))]).await;
    writer.change(vec![(1, Action::Retire)]).await;
    writer.insert(&[(1, documents[0].1.clone()), (1, Document::of(5, 6, None))]).await;
    let rows = ground.rows();
    let retired = rows[0].retired_tables().await.unwrap();
    assert_eq!((retired.len(), retired[0].table.as_str()), (1, "document_01"));
    let newest = rows[0].newest_retired(Some(1)).await.unwrap();
    let hidden: Vec<_> = newest.iter().filter(|document| document.newest == Newest::Hidden).collect();
    assert_eq!(hidden.len(), 1, "the next table has the greatest identifier: {newest:?}");
    let mut others = newest.iter().filter(|document| document.newest != Newest::Hidden);
    assert!(others.all(|document| document.newest == Newest::Missing), "{newest:?}");
    let found = rows[0].newest_hidden(hidden[0]).await.unwrap();
    assert_eq!(
        found,
        Newest::Found(documents[4].1.id.digits().to_vec()),
        "rows of the next table do not count"
    );
    assert!(rows[0].remove_outlived(1, 2, None).await.unwrap().is_done, "it left a moment ago");
    let (mut removed, mut step) = (0, Outlived::default());
    while step.tables == 0 {
        step = rows[0].remove_outlived(0, 2, step.place).await.unwrap();
        assert!(step.rows <= 2 && !step.is_done, "{step:?}");
        removed += step.rows;
    }
    assert_eq!(removed, 4);
    assert_eq!(foreign_and_retired(&ground, &[1, 2]).await, (vec![1, 6, 10], vec![]));
    assert_eq!(rows[0].retired_tables().await.unwrap(), []);
    // Those of a source that left go whenever they were retired.
    // Two retirements within a month are one: the first step that finds no row more forgets both.
    writer.change(vec![(2, Action::Retire)]).await;
    writer.change(vec![(2, Action::Retire)]).await;
    assert!(rows[0].remove_retired_of("another", 2, None).await.unwrap().is_done);
    let (mut removed, mut step) = (0, Outlived::default());
    while step.tables == 0 {
        assert_eq!(rows[0].retired_tables().await.unwrap().len(), 1, "the last trace of its rows stands");
        step = rows[0].remove_retired_of(&retired[0].source, 2, step.place).await.unwrap();
        removed += step.rows;
    }
    assert_eq!(removed, 1);
    assert_eq!(foreign_and_retired(&ground, &[1, 2]).await, (vec![1, 6], vec![]));
    assert_eq!(rows[0].retired_tables().await.unwrap(), []);
}
