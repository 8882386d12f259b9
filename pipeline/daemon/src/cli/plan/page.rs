//! A plan as one HTML page without anything from elsewhere, for a browser or for paper.

use super::measure::MeasuredView;
use super::view::{FigureView, PlanView, StoreView, YearView};

const HEAD: &str = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>Capacity plan</title>\n<style>\n\
    body { font: 10pt/1.4 sans-serif; max-width: 60rem; margin: 1rem auto; padding: 0 1rem }\n\
    table { border-collapse: collapse; width: 100% }\n\
    th, td { border-bottom: 1px solid #ccc; padding: .2rem .4rem; text-align: left; vertical-align: top }\n\
    td.number, th.number { text-align: right; white-space: nowrap }\n\
    small { color: #444 } .differs { border-left: .2rem solid #b00; padding-left: .4rem }\n\
    tr { break-inside: avoid } h2 { break-after: avoid }\n</style>\n<h1>Capacity plan</h1>\n";

pub fn of(view: &PlanView) -> String {
    let mut page = HEAD.to_owned();
    if let Some((heading, facts)) = view.measured.as_ref().map(MeasuredView::text) {
        let facts: String = facts.iter().map(|fact| format!("<li>{}\n", escaped(fact))).collect();
        page.push_str(&format!("<h2>{}</h2>\n<ul>\n{facts}</ul>\n", escaped(&heading)));
    }
    for system in &view.systems {
        page.push_str(&format!("<h2>{}</h2>\n", escaped(system.name)));
        figures(&system.figures, &mut page);
        system.stores.iter().for_each(|one| store(one, &mut page));
    }
    for sharding in &view.compare {
        page.push_str(&format!(
            "<h2>Sharded: {}</h2>\n<p>{}</p>\n",
            escaped(sharding.name),
            escaped(sharding.costs)
        ));
        figures(&sharding.figures, &mut page);
    }
    page.push_str("</html>");
    page
}

fn figures(figures: &[FigureView], page: &mut String) {
    page.push_str(
        "<table>\n<tr><th>Figure<th class=\"number\">Value<th>Formula, notes, and what documents say\n",
    );
    for figure in figures {
        let FigureView { name, label, text, formula, note, claims, .. } = figure;
        page.push_str(&format!(
            "<tr><td>{}<br><small>{}</small><td class=\"number\">{}<td>{}",
            escaped(label),
            escaped(name),
            escaped(text),
            escaped(formula)
        ));
        if let Some(note) = note {
            page.push_str(&format!("<br><em>{}</em>", escaped(note)));
        }
        for claim in claims {
            page.push_str(&format!(
                "<div class=\"{}\"><small>{}</small></div>",
                claim.verdict,
                escaped(&claim.text())
            ));
        }
        page.push('\n');
    }
    page.push_str("</table>\n");
}

fn store(store: &StoreView, page: &mut String) {
    let row = |cell: &str, texts: [String; 5]| {
        let cells = texts.map(|text| format!("<{cell} class=\"number\">{}", escaped(&text)));
        format!("<tr>{}\n", cells.concat())
    };
    page.push_str(&format!("<h3>{}, at the end of each year</h3>\n<table>\n", escaped(store.name)));
    page.push_str(&row("th", YearView::HEADS.map(str::to_owned)));
    store.years.iter().for_each(|year| page.push_str(&row("td", year.texts.clone())));
    page.push_str("</table>\n");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
