//! `flux`: explains identifiers of payment documents, and names the table of a new document, without a server. `next`,
//! `sequence`, `show` and `retention` ask servers.

mod document_tables;
mod next;
mod retention;
mod retention_check;
mod retention_cost;
mod retention_open;
mod retention_round;
mod retention_rows;
mod sequence;
mod show;
mod strategy;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::flux::id::{Defect, FluxId, Level, Month, Part, Region, SYSTEM, Side};
use anabranch_schemas::flux::placement::{Kind, Misplacement, StorageAddress, UnfitParent};
use anabranch_schemas::flux::table::{AtomSettlement, Names, settlement};
use anabranch_schemas::flux::years::Strategy;
use anabranch_schemas::shard::TablePattern;
use clap::{Args, Subcommand};
use jiff::civil::Date;
use serde::Serialize;

use self::strategy::{BothNames, StrategyArguments};
use super::{Cli, Outcome};
use crate::exit::Exit;
use crate::output;

/// Explain identifiers of payment documents, say where a new document is stored, give out new ones, and show which
/// documents belong together
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Explain(Explain),
    Place(New),
    Next(next::Arguments),
    Sequence(sequence::Arguments),
    Show(show::Arguments),
    Retention(retention::Arguments),
}

/// Print each part of an identifier, its database and table, its rule, and unusual facts
#[derive(Debug, Args)]
struct Explain {
    /// The 31 digits
    id: String,
    /// Kind of the document: its database and table are compared with the rule of this kind
    #[arg(long, value_parser = kind, help = kinds_help())]
    kind: Option<Kind>,
    /// The identifier of the document that it follows; a document that is stored elsewhere ends with `flux-misplaced`
    #[arg(long, value_name = "ID")]
    parent: Option<String>,
    #[command(flatten)]
    names: NameArguments,
}

/// Print where a new document of a kind is stored
#[derive(Debug, Args)]
struct New {
    #[arg(value_parser = kind, help = kinds_help())]
    kind: Kind,
    /// The identifier of the document that it follows; recharges and withdrawals follow none
    #[arg(long, value_name = "ID")]
    parent: Option<String>,
    /// User partition of a recharge or withdrawal, 00 to 99
    #[arg(long, conflicts_with = "parent", value_parser = clap::value_parser!(u8).range(0..100))]
    partition: Option<u8>,
    /// Date of a recharge, as YYYY-MM-DD; with --cut-over or --year-version the date of any document
    #[arg(long)]
    date: Option<Date>,
    /// The recharge enters the fail-over database
    #[arg(long, conflicts_with = "parent")]
    fail_over: bool,
    #[command(flatten)]
    names: NameArguments,
}

#[derive(Debug, Args)]
struct NameArguments {
    /// System code that an identifier must have
    #[arg(long, default_value_t = SYSTEM, value_parser = clap::value_parser!(u16).range(0..1000))]
    system: u16,
    /// Name of a database; placeholders are {db}, {partition} and {month}
    #[arg(long, value_name = "NAME", default_value = Names::DATABASE)]
    database: String,
    /// Name of a table of atoms
    #[arg(long, value_name = "NAME", default_value = Names::ATOM)]
    atom_table: String,
    /// Name of a table of composites
    #[arg(long, value_name = "NAME", default_value = Names::COMPOSITE)]
    composite_table: String,
    /// Name the settlement table of atoms with 00, which is January's table. Default: flux.settlement_atoms of
    /// --config, and 99 without it
    #[arg(long)]
    settlement_as_written: bool,
    #[command(flatten)]
    strategy: StrategyArguments,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn kind(name: &str) -> Result<Kind, String> {
    Kind::from_name(name).ok_or_else(|| format!("no such kind; expected: {}", kinds()))
}

fn kinds() -> String {
    Kind::ALL.map(Kind::name).join(", ")
}

fn kinds_help() -> String {
    format!("The kind of the document: {}", kinds())
}

/// The explanation of an identifier, or the table of a new document.
#[derive(Debug, Default, Serialize)]
struct IdentifierView {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<PartView>,
    side: &'static str,
    partition: String,
    /// Month of the table, 00 to 11, or 99.
    month: String,
    /// `month` or `year`: the rule by which the identifier names its table.
    strategy: &'static str,
    /// The year digit, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    year: Option<u8>,
    database: String,
    table: String,
    /// Tables of this level that the names reach by this strategy.
    #[serde(skip_serializing_if = "Option::is_none")]
    tables: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settlement_table: Option<String>,
    rules: Vec<RuleView>,
    odd: Vec<String>,
    misplaced: Vec<MisplacementView>,
}

#[derive(Debug, Serialize)]
struct PartView {
    digits: String,
    part: &'static str,
    value: String,
    meaning: String,
}

#[derive(Debug, Serialize)]
struct RuleView {
    kind: &'static str,
    follows: &'static str,
    rule: &'static str,
}

#[derive(Debug, Serialize)]
struct MisplacementView {
    reason: &'static str,
    text: String,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    match &arguments.command {
        Command::Explain(arguments) => {
            let atoms = arguments.names.settlement(cli)?;
            print(explain(arguments, atoms), &arguments.names)
        }
        Command::Place(arguments) => print(placement(arguments), &arguments.names),
        Command::Next(arguments) => next::run(cli, arguments),
        Command::Sequence(arguments) => sequence::run(cli, arguments),
        Command::Show(arguments) => show::run(cli, arguments),
        Command::Retention(arguments) => retention::run(cli, arguments),
    }
}

fn print(answer: Result<(IdentifierView, Option<Fault>), Fault>, names: &NameArguments) -> Outcome {
    let (view, misplaced) = answer.map_err(|fault| vec![fault])?;
    _ = output::line(&if names.json { output::json(&view) } else { view.text() });
    misplaced.map_or(Ok(Exit::Success), |fault| Err(vec![fault]))
}

/// Explains an identifier; also returns a fault if the document lies elsewhere than it should.
fn explain(arguments: &Explain, atoms: AtomSettlement) -> Result<(IdentifierView, Option<Fault>), Fault> {
    let names = arguments.names.parse()?;
    let id = arguments.names.read("identifier", &arguments.id)?;
    let parent =
        arguments.parent.as_deref().map(|parent| arguments.names.read("--parent", parent)).transpose()?;
    let parts = id.parts();
    // An atom follows its composite, whatever else it is.
    let kind =
        arguments.kind.or_else(|| (parent.is_some() && parts.level == Level::Atom).then_some(Kind::Atom));
    if parent.is_some() && kind.is_none() {
        let found = "the identifier is a composite, and --kind is missing";
        return Err(
            Fault::new(Code::FluxIdMalformed, "--parent", found).needs(format!("--kind: {}", kinds()))
        );
    }
    let strategy = &arguments.names.strategy;
    let rule = strategy.strategy(&id);
    let mut view = IdentifierView::of(&names, rule, parts.level, StorageAddress::of(&id));
    view.tables = arguments.names.tables(rule, parts.level);
    view.id = Some(id.to_string());
    view.parts = Part::ALL.map(|part| part_view(&id, part)).into();
    let reserved = view.parts.iter_mut().find(|part| part.part == Part::Reserved.name());
    if let (Some(reserved), Some(meaning)) = (reserved, strategy.meaning(&id)) {
        reserved.meaning = meaning;
    }
    view.settlement_table = Some(settlement(&id, atoms));
    view.rules = rules(&id, kind);
    view.odd = odd(&strategy.without_year(id), kind);
    let misplaced = kind.map_or(Ok(Vec::new()), |kind| kind.audit(&id, parent.as_ref())).map_err(unfit)?;
    view.misplaced = misplaced.iter().map(MisplacementView::from).collect();
    let of_year = strategy.misplaced(&id, kind, parent.as_ref()).into_iter();
    view.misplaced.extend(of_year.map(|(reason, text)| MisplacementView { reason, text }));
    let fault = view.misplaced.first().map(|first| {
        Fault::new(Code::FluxMisplaced, format!("identifier {id}"), first.text.clone())
            .needs(format!("the table of its kind: {}", kind.map_or("", Kind::rule)))
    });
    Ok((view, fault))
}

fn placement(arguments: &New) -> Result<(IdentifierView, Option<Fault>), Fault> {
    let names = arguments.names.parse()?;
    let kind = arguments.kind;
    let parent =
        arguments.parent.as_deref().map(|parent| arguments.names.read("--parent", parent)).transpose()?;
    let missing = |what: &str| {
        Fault::new(Code::FluxParentUnfit, format!("flux place {}", kind.name()), format!("{what} is missing"))
            .needs(format!("what decides its place: {}", kind.rule()))
    };
    let place = match (kind, parent) {
        (_, Some(parent)) => kind.address_below(&parent).map_err(unfit)?,
        (Kind::Recharge, None) => {
            let partition = arguments.partition.ok_or_else(|| missing("--partition"))?;
            let date = arguments.date.ok_or_else(|| missing("--date"))?;
            let side = if arguments.fail_over { Side::FailOver } else { Side::Main };
            StorageAddress::of_recharge(date, partition, side)
        }
        (Kind::Withdrawal, None) => {
            if arguments.fail_over {
                let found = "--fail-over was given";
                let fault = Fault::new(Code::FluxParentUnfit, "flux place withdrawal", found);
                return Err(fault.needs(kind.rule()));
            }
            StorageAddress::of_withdrawal(arguments.partition.ok_or_else(|| missing("--partition"))?)
        }
        (_, None) => return Err(missing(&format!("--parent, the identifier of {},", kind.parent()))),
    };
    let strategy = arguments.names.strategy.of_new(kind, arguments.date, parent.as_ref())?;
    let mut view = IdentifierView::of(&names, strategy, kind.level(), place);
    view.tables = arguments.names.tables(strategy, kind.level());
    view.rules = vec![RuleView::from(kind)];
    Ok((view, None))
}

impl NameArguments {
    fn parse(&self) -> Result<BothNames, Fault> {
        let by_month = Names::parse(&self.database, &self.atom_table, &self.composite_table);
        let both = by_month
            .and_then(|by_month| Ok(BothNames { by_month, by_year: self.strategy.names(&self.database)? }));
        both.map_err(|error| {
            let options =
                "--database, --atom-table, --composite-table, --year-atom-table, --year-composite-table";
            Fault::new(Code::FluxIdMalformed, options, error.to_string())
        })
    }

    /// Returns how many tables of a level the names reach; `None` if they are no pattern of captured tables.
    fn tables(&self, strategy: Strategy, level: Level) -> Option<u32> {
        let table = match (strategy, level) {
            (Strategy::Month, Level::Composite) => &self.composite_table,
            (Strategy::Month, Level::Atom) => &self.atom_table,
            (Strategy::Year(_), level) => self.strategy.table(level),
        };
        let pattern = TablePattern::parse(&format!("{}.{table}", self.database)).ok()?;
        Some(pattern.tables_of_documents())
    }

    fn read(&self, subject: &str, text: &str) -> Result<FluxId, Fault> {
        FluxId::parse_of(text.as_bytes(), self.system).map_err(|defect| malformed(subject, defect))
    }

    /// Returns the digits of settlement tables of atoms by the option, or by the configuration if there is one.
    fn settlement(&self, cli: &Cli) -> Result<AtomSettlement, Vec<Fault>> {
        if self.settlement_as_written {
            return Ok(AtomSettlement::AsWritten);
        }
        if cli.config.is_none() {
            return Ok(AtomSettlement::default());
        }
        Ok(cli.configuration()?.flux.map(|flux| flux.settlement_atoms).unwrap_or_default())
    }
}

fn malformed(subject: &str, defect: Defect) -> Fault {
    let text = defect.to_string();
    let (found, expected) = text.split_once("; expected: ").unwrap_or((&text, "31 digits"));
    Fault::new(Code::FluxIdMalformed, subject, found).needs(expected)
}

fn unfit(unfit: UnfitParent) -> Fault {
    Fault::new(Code::FluxParentUnfit, "parent", unfit.to_string())
        .needs("the identifier of the document that it follows")
}

impl From<Kind> for RuleView {
    fn from(kind: Kind) -> Self {
        Self { kind: kind.name(), follows: kind.parent(), rule: kind.rule() }
    }
}

impl From<&Misplacement> for MisplacementView {
    fn from(misplacement: &Misplacement) -> Self {
        Self { reason: misplacement.reason(), text: misplacement.to_string() }
    }
}

/// Returns the rule of the kind, or the rules of every kind that the digits allow.
fn rules(id: &FluxId, kind: Option<Kind>) -> Vec<RuleView> {
    let allowed = |kind: &Kind| kind.audit(id, None).is_ok_and(|view| view.is_empty());
    match kind {
        Some(kind) => vec![kind.into()],
        None => Kind::ALL.into_iter().filter(allowed).map(RuleView::from).collect(),
    }
}

fn part_view(id: &FluxId, part: Part) -> PartView {
    let ((first, last), digits) = (part.digits(), id.to_string());
    let parts = id.parts();
    let meaning = match part {
        Part::Date => parts.date.to_string(),
        Part::Version if parts.version == 8 => "new reconciliation".to_owned(),
        Part::Version => "normal".to_owned(),
        Part::Region => match parts.region {
            Region::UnitedStates => "United States".to_owned(),
            Region::Singapore => "Singapore".to_owned(),
        },
        Part::System => "the system of the document".to_owned(),
        Part::Level => parts.level.name().to_owned(),
        Part::Business => "the business code; which kind it is, is a setting".to_owned(),
        Part::Side => parts.side.name().to_owned(),
        Part::Month => match parts.month {
            Month::No => "no month: a refund, chargeback, withdrawal or what belongs to one".to_owned(),
            Month::Of(month) => MONTHS[usize::from(month)].to_owned(),
        },
        Part::Partition => format!("database {}, table {:02}", parts.partition / 10, parts.partition),
        Part::Reserved => "may be anything".to_owned(),
        Part::Sequence => "number within date, region, partition and main or fail-over".to_owned(),
    };
    let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
    PartView { digits: range, part: part.name(), value: digits[first - 1..last].to_owned(), meaning }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Lists facts that break no rule and are still unusual.
fn odd(id: &FluxId, kind: Option<Kind>) -> Vec<String> {
    let parts = id.parts();
    let mut odd = Vec::new();
    let own = Month::of_date(parts.date);
    if parts.month != Month::No && parts.month != own && kind != Some(Kind::Recharge) {
        odd.push(format!(
            "month {:02} is not the month of its date ({:02}): right only for documents that follow a recharge of that \
             month",
            parts.month.digits(),
            own.digits()
        ));
    }
    if parts.reserved != 0 {
        odd.push(format!(
            "reserved digits are {:02}: they are not in use, and any are valid",
            parts.reserved
        ));
    }
    if parts.month == Month::No && parts.side == Side::FailOver {
        odd.push("no month and in fail-over: right only below a recharge that failed over itself".to_owned());
    }
    if parts.level == Level::Atom {
        odd.push(
            "the source document names the settlement table of atoms with 00, which is January's table; 99 is the \
             default, and flux.settlement_atoms or --settlement-as-written gives 00"
                .to_owned(),
        );
    }
    odd
}

/// Returns the line of a strategy by its name and year digit.
fn strategy_line(strategy: &str, year: Option<u8>) -> String {
    let year = year.map_or_else(String::new, |year| format!(", whose last digit is {year}"));
    format!("strategy    by {strategy}{year}")
}

impl IdentifierView {
    fn of(names: &BothNames, strategy: Strategy, level: Level, place: StorageAddress) -> Self {
        let (database, table) = names.of(strategy, level, place);
        Self {
            strategy: strategy.name(),
            year: strategy.year(),
            side: place.side.name(),
            partition: format!("{:02}", place.partition),
            month: format!("{:02}", place.month.digits()),
            database,
            table,
            ..Self::default()
        }
    }

    fn text(&self) -> String {
        let mut lines = Vec::new();
        lines.extend(self.id.as_ref().map(|id| format!("identifier  {id}")));
        if !self.parts.is_empty() {
            lines.push(format!("{:7} {:18} {:9} MEANING", "DIGITS", "PART", "VALUE"));
        }
        for PartView { digits, part, value, meaning } in &self.parts {
            lines.push(format!("{digits:7} {part:18} {value:9} {meaning}"));
        }
        lines.push(format!("side        {}", self.side));
        lines.push(format!("partition   {}", self.partition));
        lines.push(format!("month       {}", self.month));
        lines.push(strategy_line(self.strategy, self.year));
        lines.push(format!("database    {}", self.database));
        lines.push(format!("table       {}", self.table));
        let reach = |tables: u32| format!("tables      {tables} of this level are reached by these names");
        lines.extend(self.tables.map(reach));
        lines.extend(self.settlement_table.as_ref().map(|table| format!("settlement  {table}")));
        for RuleView { kind, follows, rule } in &self.rules {
            lines.push(format!("rule        {kind}, which follows {follows}: {rule}"));
        }
        lines.extend(self.odd.iter().map(|text| format!("odd         {text}")));
        lines.extend(self.misplaced.iter().map(|view| format!("misplaced   {}", view.text)));
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests;
