//! Tests of the way up and of trees, on an index in memory.

use std::sync::Mutex;

use anabranch_schemas::flux::id::Parts;
use anabranch_schemas::shard::ShardId;

use super::*;

const RECHARGE: &str = "2016060611031003005050000000001";

/// The document of this sequence in the recharge's table.
fn id(sequence: u32) -> FluxId {
    RECHARGE.parse::<FluxId>().unwrap().with_sequence(sequence).unwrap()
}

fn row(id: FluxId, shard: u64, parent: Option<FluxId>) -> RelationRow {
    let parent = parent.map(|parent| parent.digits().as_slice().into());
    RelationRow { id, shard: ShardId::from_u64(shard).unwrap(), parent, amount: None, created: None }
}

/// An index that counts the documents whose children were asked for.
#[derive(Default)]
struct Index {
    rows: Vec<RelationRow>,
    asked: Mutex<Vec<usize>>,
}

impl Index {
    /// One row for each pair of sequences (document, parent); parent 0 = none.
    fn of(pairs: &[(u32, u32)]) -> Self {
        let parent = |sequence| (sequence > 0).then(|| id(sequence));
        let mut rows: Vec<_> =
            pairs.iter().map(|(document, above)| row(id(*document), 1, parent(*above))).collect();
        rows.sort_by_key(RelationRow::order);
        Self { rows, asked: Mutex::default() }
    }

    fn found(&self, is_sought: impl Fn(&RelationRow) -> bool, limit: usize) -> Vec<RelationRow> {
        self.rows.iter().filter(|row| is_sought(row)).take(limit).cloned().collect()
    }
}

impl RelationStore for Index {
    async fn documents(&self, ids: &[FluxId]) -> Result<Vec<RelationRow>, Fault> {
        Ok(self.found(|row| ids.contains(&row.id), usize::MAX))
    }

    async fn children(&self, parents: &[FluxId], limit: usize) -> Result<Vec<RelationRow>, Fault> {
        self.asked.lock().unwrap().push(parents.len());
        let parents: HashSet<Vec<u8>> = parents.iter().map(|parent| parent.digits().to_vec()).collect();
        Ok(self.found(|row| row.parent.as_deref().is_some_and(|parent| parents.contains(parent)), limit))
    }
}

async fn way_of(index: &Index, sequence: u32) -> (Vec<u32>, WayEnd) {
    let document = document(index, &id(sequence)).await.unwrap().unwrap();
    let way = way_up(index, &document).await.unwrap();
    (way.documents.iter().map(|document| document.id.parts().sequence).collect(), way.end)
}

/// (depth, sequence) of each document of a page.
fn places(page: &PageBelow) -> Vec<(u32, u32)> {
    page.documents.iter().map(|below| (below.depth, below.document.id.parts().sequence)).collect()
}

async fn all_below(index: &Index, sequence: u32) -> PageBelow {
    below(index, &id(sequence), None, usize::MAX).await.unwrap()
}

#[tokio::test]
async fn a_way_leads_from_a_clearing_over_its_refund_to_the_recharge() {
    let index = Index::of(&[(1, 0), (2, 1), (3, 2)]);
    assert_eq!(way_of(&index, 3).await, (vec![2, 1], WayEnd::Top));
    assert_eq!(way_of(&index, 1).await, (vec![], WayEnd::Top));
    assert_eq!(document(&index, &id(9)).await.unwrap(), None);
}

#[tokio::test]
async fn a_way_ends_with_the_reason_for_which_it_cannot_go_on() {
    let mut index = Index::of(&[(3, 2), (4, 3), (5, 6), (6, 7), (7, 6), (8, 8)]);
    index.rows.push(RelationRow { parent: Some(b"\xff".as_slice().into()), ..row(id(9), 1, None) });
    let elsewhere = FluxId::of(Parts { system: 7, ..*id(1).parts() }, 7).unwrap();
    index.rows.push(row(id(10), 1, Some(elsewhere)));
    assert_eq!(way_of(&index, 4).await, (vec![3], WayEnd::MissingParent(id(2))));
    assert_eq!(way_of(&index, 5).await, (vec![6, 7], WayEnd::Cycle(id(6))));
    assert_eq!(way_of(&index, 8).await, (vec![], WayEnd::Cycle(id(8))), "its own parent");
    assert_eq!(way_of(&index, 9).await.1, WayEnd::MalformedParent(b"\xff".as_slice().into()));
    assert!(matches!(way_of(&index, 10).await.1, WayEnd::MalformedParent(_)), "another system");

    let chain: Vec<_> = (1..40).map(|sequence| (sequence, sequence + 1)).collect();
    let (way, end) = way_of(&Index::of(&chain), 1).await;
    assert_eq!((way.len(), end), (16, WayEnd::TooManyLevels(id(18))));
    let short: Vec<_> = (1..=17).map(|sequence| (sequence, (sequence + 1) % 18)).collect();
    assert_eq!(way_of(&Index::of(&short), 1).await.1, WayEnd::Top, "sixteen above it");
}

#[tokio::test]
async fn several_rows_of_an_identifier_are_one_document_with_several_claims() {
    let mut index = Index::of(&[(1, 0), (2, 1), (3, 2)]);
    index.rows.push(row(id(2), 2, Some(id(1))));
    index.rows.push(row(id(4), 1, None));
    index.rows.push(row(id(4), 2, Some(id(1))));
    index.rows.sort_by_key(RelationRow::order);
    let moved = document(&index, &id(2)).await.unwrap().unwrap();
    assert_eq!((moved.claims.len(), moved.has_two_parents()), (2, false));
    let doubled = document(&index, &id(4)).await.unwrap().unwrap();
    assert!(doubled.has_two_parents());
    assert_eq!(doubled.parent(), Some(id(1).digits().as_slice()), "a claim that names a parent counts");
    let page = all_below(&index, 1).await;
    assert_eq!(places(&page), [(1, 2), (1, 4), (2, 3)]);
    assert_eq!(page.documents[0].document, moved);
}

#[tokio::test]
async fn below_a_missing_parent_and_in_a_cycle_each_document_comes_once() {
    let index = Index::of(&[(2, 1), (3, 1), (4, 2), (5, 4), (6, 7), (7, 8), (8, 6)]);
    assert_eq!(places(&all_below(&index, 1).await), [(1, 2), (1, 3), (2, 4), (3, 5)]);
    assert_eq!(places(&all_below(&index, 6).await), [(1, 8), (2, 7)]);
    assert_eq!(all_below(&index, 5).await, PageBelow::default());
}

#[tokio::test]
async fn pages_of_any_size_hold_the_same_documents_as_one_page() {
    let index = Index::of(&[(5, 1), (2, 1), (9, 2), (3, 5), (4, 5), (7, 3), (8, 3), (6, 9)]);
    let whole = all_below(&index, 1).await;
    assert_eq!(places(&whole), [(1, 2), (1, 5), (2, 3), (2, 4), (2, 9), (3, 6), (3, 7), (3, 8)]);
    assert!(whole.next.is_none() && !whole.is_cut);
    for limit in 1..=9 {
        let (mut documents, mut after) = (Vec::new(), None::<PageCursor>);
        loop {
            let page = below(&index, &id(1), after.as_ref(), limit).await.unwrap();
            assert!((1..=limit).contains(&page.documents.len()), "no page is empty");
            documents.extend(page.documents);
            // A client sends the text.
            after = page.next.map(|next| PageCursor::parse_of(&next.to_string(), 31).unwrap());
            if after.is_none() {
                break;
            }
        }
        assert_eq!(documents, whole.documents, "{limit}");
    }
}

#[tokio::test]
async fn a_tree_is_cut_by_rows_and_by_levels_and_says_so() {
    let wide: Vec<_> = (2..=TREE_ROWS_MAX as u32 + 1).map(|sequence| (sequence, 1)).collect();
    let whole = all_below(&Index::of(&wide), 1).await;
    assert_eq!((whole.documents.len(), whole.is_cut), (TREE_ROWS_MAX, false));
    for further in [1, 2] {
        let more = [&wide[..], &[(TREE_ROWS_MAX as u32 + 2, further)]].concat();
        let cut = all_below(&Index::of(&more), 1).await;
        assert_eq!((cut.documents.len(), cut.is_cut, cut.next), (TREE_ROWS_MAX, true, None));
    }
    let deep: Vec<_> = (2..=18).map(|sequence| (sequence, sequence - 1)).collect();
    let cut = all_below(&Index::of(&deep), 1).await;
    assert_eq!((cut.documents.len(), cut.is_cut), (LEVELS_MAX as usize, true));
    let whole = all_below(&Index::of(&deep[..16]), 1).await;
    assert_eq!((whole.documents.len(), whole.is_cut), (LEVELS_MAX as usize, false));
}

#[tokio::test]
async fn only_the_last_page_of_a_tree_that_is_cut_says_so() {
    let wide: Vec<_> = (2..=TREE_ROWS_MAX as u32 + 2).map(|sequence| (sequence, 1)).collect();
    let (index, limit) = (Index::of(&wide), TREE_ROWS_MAX - 1);
    let first = below(&index, &id(1), None, limit).await.unwrap();
    assert_eq!((first.documents.len(), first.is_cut), (limit, false));
    let last = below(&index, &id(1), first.next.as_ref(), limit).await.unwrap();
    assert_eq!((last.documents.len(), last.is_cut, last.next), (1, true, None));
}

#[tokio::test]
async fn a_page_goes_on_after_a_document_that_is_gone_meanwhile() {
    let mut index = Index::of(&[(2, 1), (3, 1), (4, 1), (5, 3), (6, 4)]);
    let first = below(&index, &id(1), None, 2).await.unwrap();
    assert_eq!(
        (places(&first), first.next),
        (vec![(1, 2), (1, 3)], Some(PageCursor { depth: 1, id: id(3) }))
    );
    index.rows.retain(|row| row.id != id(3));
    let rest = below(&index, &id(1), first.next.as_ref(), 9).await.unwrap();
    assert_eq!((places(&rest), rest.next), (vec![(1, 4), (2, 6)], None));
    let after_all = PageCursor { depth: 9, id: id(1) };
    assert_eq!(below(&index, &id(1), Some(&after_all), 9).await.unwrap(), PageBelow::default());
}

#[tokio::test]
async fn a_page_asks_for_no_level_after_its_own() {
    let index = Index::of(&[(2, 1), (3, 2), (4, 3), (5, 4)]);
    let page = below(&index, &id(1), None, 1).await.unwrap();
    assert_eq!((places(&page), page.next), (vec![(1, 2)], Some(PageCursor { depth: 1, id: id(2) })));
    assert_eq!(*index.asked.lock().unwrap(), [1, 1], "the next level shows that a page follows");
}

#[test]
fn a_cursor_is_read_as_it_was_written_and_nothing_else_is_one() {
    let cursor = PageCursor { depth: 2, id: id(7) };
    assert_eq!(PageCursor::parse_of(&cursor.to_string(), 31), Some(cursor));
    let id = id(7);
    for text in ["", "2", "2.", &id.to_string(), &format!("0.{id}"), &format!("17.{id}"), &format!("2.{id}7")]
    {
        assert_eq!(PageCursor::parse_of(text, 31), None, "{text}");
    }
    assert_eq!(PageCursor::parse_of(&cursor.to_string(), 7), None);
}
