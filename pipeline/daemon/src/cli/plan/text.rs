//! A plan as text for a terminal.

use super::measure::MeasuredView;
use super::view::{FigureView, PlanView, ShardingView, StoreView, YearView};

pub fn of(view: &PlanView) -> String {
    let mut lines = Vec::new();
    if let Some((heading, facts)) = view.measured.as_ref().map(MeasuredView::text) {
        lines.extend([heading.to_uppercase(), String::new()]);
        lines.extend(facts.iter().map(|fact| format!("  {fact}")));
        lines.push(String::new());
    }
    for system in &view.systems {
        lines.extend([system.name.to_uppercase(), String::new()]);
        system.figures.iter().for_each(|one| figure(one, &mut lines));
        system.stores.iter().for_each(|one| store(one, &mut lines));
        lines.push(String::new());
    }
    view.compare.iter().for_each(|one| sharding(one, &mut lines));
    lines.join("\n").trim_end().to_owned()
}

fn figure(figure: &FigureView, lines: &mut Vec<String>) {
    let FigureView { name, label, text, formula, .. } = figure;
    lines.push(format!("  {name}: {text}"));
    lines.push(format!("      {label} = {formula}"));
    lines.extend(figure.note.iter().map(|note| format!("      note: {note}")));
    lines.extend(figure.claims.iter().map(|claim| format!("      {}", claim.text())));
}

fn store(store: &StoreView, lines: &mut Vec<String>) {
    let rows: Vec<[String; 5]> = std::iter::once(YearView::HEADS.map(str::to_owned))
        .chain(store.years.iter().map(|year| year.texts.clone()))
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    lines.extend([String::new(), format!("  {}, at the end of each year", store.name)]);
    for row in &rows {
        let cells: Vec<String> = (0..5).map(|column| format!("{:>1$}", row[column], width(column))).collect();
        lines.push(format!("    {}", cells.join("  ")));
    }
}

fn sharding(sharding: &ShardingView, lines: &mut Vec<String>) {
    lines.extend([format!("SHARDED: {}", sharding.name), format!("  {}", sharding.costs), String::new()]);
    sharding.figures.iter().for_each(|one| figure(one, lines));
    lines.push(String::new());
}
