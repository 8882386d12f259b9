//! `flux show`: a payment document and its relations as the HTTP API shows them, but without a running daemon.
//!
//! If the daemon of this configuration answers, its lag is shown, because the daemon knows earlier heads of the source.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::flux::id::FluxId;
use clap::Args;
use serde::Serialize;
use serde_json::Value as Json;

use super::{malformed, strategy_line};
use crate::api::client;
use crate::cli::lookup::fault;
use crate::cli::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::lookup::{AtLeast, LaneFreshness, Refusal};
use crate::output;
use crate::relations::{BelowQuestion, ClaimView, DocumentAnswer, DocumentView, Relations, RelationsAnswer};
use crate::wiring::Wiring;

/// Show a payment document of the relation index: its tables, the documents above it and, on request, all below it
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The 31 digits
    id: String,
    /// Show the documents below it, too
    #[arg(long)]
    relations: bool,
    /// Wait, 2 s at most, until this place of a source's binlog has been passed: SOURCE:1:42:8192,
    /// SOURCE:binlog.000042:8192 or SOURCE:GTID-set
    #[arg(long, value_name = "PLACE")]
    at_least: Option<String>,
    /// Documents below it that are shown at once
    #[arg(long, requires = "relations")]
    limit: Option<usize>,
    /// Continue after a page, with its `next`
    #[arg(long, value_name = "NEXT", requires = "relations")]
    after: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The document, and a page of the documents below it.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    #[serde(flatten)]
    document: DocumentAnswer,
    #[serde(skip_serializing_if = "Option::is_none")]
    relations: Option<RelationsAnswer>,
}

pub(super) fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let config = cli.configuration()?;
    let http = config.http.clone();
    let shown = block_on(async {
        let relations = Relations::new(&Wiring::new(config)).ok_or_else(|| vec![unconfigured()])?;
        let id = relations.read_id(&arguments.id);
        let id = id.map_err(|defect| vec![malformed("identifier", defect)])?;
        let refused = |refusal| vec![fault("flux show", refusal)];
        let question = relations.question(arguments.limit, arguments.after.as_deref()).map_err(refused)?;
        let place = arguments.at_least.as_deref().map(str::parse::<AtLeast>);
        let place = place.transpose().map_err(refused)?;
        relations.name_tables().await;
        if let Some(daemon) = client::status(&http).await {
            relations.lanes_seen(&daemon.status);
        }
        let question = arguments.relations.then_some(&question);
        ask(&relations, &id, question, place.as_ref()).await.map_err(refused)
    })??;
    _ = output::line(&if arguments.json { output::json(&shown) } else { shown.text() });
    Ok(Exit::Success)
}

/// Asks for the document and, with a question, for documents below it.
async fn ask(
    relations: &Relations,
    id: &FluxId,
    question: Option<&BelowQuestion>,
    place: Option<&AtLeast>,
) -> Result<Shown, Refusal> {
    let document = relations.document(id, place).await?;
    let below = match question {
        Some(question) => Some(relations.below(id, question, place).await?),
        None => None,
    };
    Ok(Shown { document, relations: below })
}

fn unconfigured() -> Fault {
    Fault::new(Code::FluxUnconfigured, "configuration key projections", "none of kind `flux_relations`")
        .needs("the relation index of payment documents")
        .remedy("see deploy/flux.example.toml")
}

impl Shown {
    fn text(&self) -> String {
        let answer = &self.document;
        let mut lines = vec![format!("identifier  {}", line(&answer.document))];
        let parts = &answer.parts;
        lines.push(format!(
            "place       {}, {}, {}, partition {}, month {}",
            parts.region, parts.side, parts.level, parts.partition, parts.month
        ));
        lines.push(strategy_line(answer.strategy, answer.year));
        lines.extend(answer.claims.iter().map(|claim| format!("table       {}", table(claim))));
        if answer.claims.is_empty() {
            lines.push("table       none: no captured table has this document".to_owned());
        }
        lines.extend(answer.above.iter().map(|document| format!("above       {}", line(document))));
        if let Some(end) = answer.above_end.as_ref().filter(|end| end.reason != "top") {
            let parent = end.parent.as_ref().map_or_else(String::new, text);
            lines.push(format!("above       {}: {parent}", end.reason.replace('_', " ")));
        }
        lines.extend(answer.odd.0.iter().map(|text| format!("odd         {text}")));
        if let Some(relations) = &self.relations {
            lines.extend(below(relations));
        }
        lines.push(freshness(&answer.freshness));
        lines.join("\n")
    }
}

/// Returns a line for each document below, indented by its depth.
fn below(relations: &RelationsAnswer) -> Vec<String> {
    let indented = |depth: u32| "  ".repeat(depth as usize - 1);
    let documents = relations.documents.iter();
    let mut lines: Vec<String> = documents
        .map(|below| format!("below       {}{}", indented(below.depth), line(&below.document)))
        .collect();
    if lines.is_empty() {
        lines.push("below       none".to_owned());
    }
    if relations.is_cut {
        lines.push("below       further documents are left out: the tree is too large".to_owned());
    }
    lines.extend(relations.next.as_ref().map(|next| format!("there are more: --after {next}")));
    lines
}

/// Returns identifier, kind, amount and time of a document.
fn line(document: &DocumentView) -> String {
    let words = [
        Some(document.id.clone()),
        document.kind.map(str::to_owned),
        document.amount.as_ref().map(text),
        document.created.as_ref().map(text),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join("  ")
}

fn table(claim: &ClaimView) -> String {
    match (&claim.source, &claim.database, &claim.table) {
        (Some(source), Some(database), Some(table)) => format!("{database}.{table} of {source}"),
        _ => format!("shard {}, whose source did not answer or is not configured", claim.shard),
    }
}

/// Returns text as it is, and other bytes as JSON shows them.
fn text(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn freshness(freshness: &LaneFreshness) -> String {
    let lag = freshness.lag_ms.map_or_else(|| "not known".to_owned(), |lag| format!("{lag} ms"));
    let replaying = if freshness.replaying { ", a lane is replaying: documents may be missing" } else { "" };
    format!("lag         {lag}{replaying}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::relations::{BelowView, EndView, OddTexts, PartsView};

    const REFUND: &str = "2016060611031003099052400029904";

    fn view(id: &str, kind: Option<&'static str>) -> DocumentView {
        let (amount, created) = (Some(json!("12.5")), None);
        DocumentView { id: id.to_owned(), kind, parent: None, amount, created }
    }

    fn claim(table: Option<&str>) -> ClaimView {
        ClaimView {
            shard: "7".to_owned(),
            source: table.map(|_| "source-a".to_owned()),
            database: table.map(|_| "flux_00_0".to_owned()),
            table: table.map(str::to_owned),
            parent: None,
            amount: None,
            created: None,
        }
    }

    fn shown() -> Shown {
        let id: FluxId = REFUND.parse().unwrap();
        let document = DocumentAnswer {
            document: view(REFUND, Some("refund")),
            parts: PartsView::from(id.parts()),
            strategy: "month",
            year: None,
            claims: vec![claim(Some("composite_05_99")), claim(None)],
            above: vec![view("1", None)],
            above_end: Some(EndView { reason: "missing_parent", parent: Some(json!("2")) }),
            odd: OddTexts(vec!["digit 17".to_owned()]),
            freshness: LaneFreshness { lag_ms: Some(3), replaying: false },
        };
        let below = |depth| BelowView { depth, document: view("3", Some("refund-clearing")) };
        let relations = RelationsAnswer {
            id: REFUND.to_owned(),
            documents: vec![below(1), below(2)],
            is_cut: true,
            freshness: LaneFreshness::default(),
            next: Some("2.3".to_owned()),
        };
        Shown { document, relations: Some(relations) }
    }

    #[test]
    fn a_document_is_shown_with_its_tables_its_way_up_and_its_tree() {
        let text = shown().text();
        for line in [
            "identifier  2016060611031003099052400029904  refund  12.5",
            "place       singapore, main, composite, partition 05, month 99",
            "strategy    by month",
            "table       flux_00_0.composite_05_99 of source-a",
            "table       shard 7, whose source did not answer",
            "above       1  12.5",
            "above       missing parent: 2",
            "odd         digit 17",
            "below       3  refund-clearing  12.5",
            "below         3  refund-clearing",
            "below       further documents are left out",
            "there are more: --after 2.3",
            "lag         3 ms",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
        let unknown = Shown { relations: None, ..shown() };
        let document =
            DocumentAnswer { claims: Vec::new(), strategy: "year", year: Some(2), ..unknown.document };
        let text = Shown { document, relations: None }.text();
        assert!(text.contains("no captured table has this document") && !text.contains("below"), "{text}");
        assert!(text.contains("strategy    by year, whose last digit is 2"), "{text}");
    }

    #[test]
    fn the_json_has_the_document_at_its_top_and_the_tree_beside_it() {
        let json = serde_json::to_value(shown()).unwrap();
        assert_eq!((&json["id"], &json["parts"]["month"]), (&json!(REFUND), &json!("99")));
        assert_eq!(json["above_end"], json!({ "reason": "missing_parent", "parent": "2" }));
        assert_eq!(json["relations"]["documents"][1]["depth"], 2);
        assert_eq!(json["odd"], json!(["digit 17"]));
        assert_eq!((&json["strategy"], &json["year"]), (&json!("month"), &json!(null)));
        assert!(json["claims"][1]["table"].is_null());
    }
}
