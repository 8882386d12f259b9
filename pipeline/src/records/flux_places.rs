//! The settings that say where payment documents belong, and the audit of a document by them.
//!
//! The pattern of a table says partition and month of its documents, its `[[entities]]` entry their level, its source
//! their region and side. The business code says the kind of a document. With the strategy by year, an identifier says
//! which of the two rules it follows, and tables of both stand side by side. Settings that are left out say nothing,
//! and so do parts that a table's name leaves out. The audit then compares less; [`FluxPlaces::unaudited`] says so.

use std::fmt;
use std::sync::OnceLock;

use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::flux::audit::{Oddity, TablePlace, audit};
use anabranch_schemas::flux::id::{FluxId, Level, Month, NO_MONTH, Region, Side};
use anabranch_schemas::flux::placement::Kind;
use anabranch_schemas::flux::years::{Strategy, Years};
use anabranch_schemas::shard::{ShardId, TablePattern};

/// Slots for the places of tables. Two regions, each with main and fail-over, atoms and composites, have 10,400 tables:
/// 100 partitions, each with 12 months and one table without. So a look-up mostly ends at its first slot.
const SLOTS: usize = 1 << 15;
/// Slots with tables by year beside them: one region has 52,000 of these, of which most are empty at any time.
const SLOTS_WITH_YEARS: usize = 1 << 17;
/// Slots that a table may have, one after the other.
const PROBES: usize = 8;

/// Places of tables that were asked for, so that a row costs one look-up and no lock.
///
/// A shard id is a hash, so it says the first slot of its table. A table that finds all of its slots taken is never
/// remembered: a slot keeps its first table for good.
#[derive(Default)]
struct RememberedPlaces(OnceLock<Box<[Slot]>>);

/// A table and what was found for it, once a row of it has come.
type Slot = OnceLock<(ShardId, Found)>;

/// The place of a table.
#[derive(Debug, Clone, Copy)]
struct Found {
    place: TablePlace,
    /// It is a table of a source. An heir of a table is none.
    is_own: bool,
}

impl RememberedPlaces {
    fn get_or_find(&self, shard: ShardId, number: usize, find: impl Fn() -> Found) -> Found {
        let slots = self.0.get_or_init(|| (0..number).map(|_| OnceLock::new()).collect());
        let first = shard.as_u64() as usize;
        for probe in 0..PROBES {
            // The number of slots is a power of two.
            let slot = &slots[first.wrapping_add(probe) & (slots.len() - 1)];
            let (known, found) = slot.get_or_init(|| (shard, find()));
            if *known == shard {
                return *found;
            }
        }
        find()
    }
}

/// Writes no slots: most of them are empty.
impl fmt::Debug for RememberedPlaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RememberedPlaces").finish_non_exhaustive()
    }
}

/// The tables of one `[[entities]]` entry of payment documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FluxTables {
    pub pattern: TablePattern,
    /// The level of their documents, atoms or composites; `None` = either.
    pub level: Option<Level>,
}

/// A source of payment documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FluxSource {
    pub name: String,
    pub generation: u32,
    /// Region and side of all of its documents; `None` = they are not compared.
    pub site: Option<(Region, Side)>,
}

/// The places of payment documents, by the configuration.
#[derive(Debug)]
pub struct FluxPlaces {
    system: u16,
    /// Kind by business code and digit of the level.
    kinds: [[Option<Kind>; 2]; 100],
    tables: Vec<FluxTables>,
    sources: Vec<FluxSource>,
    /// The strategy by year; `None` = no identifier has a year digit.
    years: Option<Years>,
    remembered: RememberedPlaces,
}

impl FluxPlaces {
    /// Builds the places. Of two kinds of one business code and level, the last one counts.
    pub fn new(system: u16, kinds: &[(u8, Kind)], tables: Vec<FluxTables>, sources: Vec<FluxSource>) -> Self {
        let mut known = [[None; 2]; 100];
        for (business, kind) in kinds {
            if let Some(levels) = known.get_mut(usize::from(*business)) {
                levels[usize::from(kind.level().digit())] = Some(*kind);
            }
        }
        let remembered = RememberedPlaces::default();
        Self { system, kinds: known, tables, sources, years: None, remembered }
    }

    /// Adds the strategy by year: identifiers that it covers follow it, and all others the one by month.
    #[must_use]
    pub fn with_years(self, years: Option<Years>) -> Self {
        Self { years, ..self }
    }

    /// Returns the system code that every identifier has.
    pub fn system(&self) -> u16 {
        self.system
    }

    /// Returns the kind of a document by its level and business code; `None` when the configuration names none.
    pub fn kind(&self, id: &FluxId) -> Option<Kind> {
        let parts = id.parts();
        self.kinds.get(usize::from(parts.business))?[usize::from(parts.level.digit())]
    }

    /// Returns the rule by which an identifier names its table; without the strategy by year it is the month alone.
    pub fn strategy(&self, id: &FluxId) -> Strategy {
        self.years.map_or(Strategy::Month, |years| years.strategy(id))
    }

    /// Returns the place that a table's name and source stand for.
    pub fn of_table(&self, table: &TableIdentity<'_>) -> TablePlace {
        self.found(table).place
    }

    /// Returns the place as [`Self::of_table`] does; `None` unless it is a table of a source. The rows of an heir were
    /// audited as rows of its table.
    pub fn of_own_table(&self, table: &TableIdentity<'_>) -> Option<TablePlace> {
        let found = self.found(table);
        found.is_own.then_some(found.place)
    }

    fn found(&self, table: &TableIdentity<'_>) -> Found {
        let slots = if self.years.is_some() { SLOTS_WITH_YEARS } else { SLOTS };
        self.remembered.get_or_find(table.shard, slots, || self.find(table))
    }

    /// Returns all differences between a document and its place. `parent` is the parent's identifier, if it has one.
    pub fn oddities(&self, table: &TableIdentity<'_>, id: &FluxId, parent: Option<&FluxId>) -> Vec<Oddity> {
        self.oddities_at(&self.of_table(table), id, parent)
    }

    /// Returns the differences as [`Self::oddities`] does, for a caller that audits many rows of one table.
    pub fn oddities_at(&self, place: &TablePlace, id: &FluxId, parent: Option<&FluxId>) -> Vec<Oddity> {
        let kind = self.kind(id);
        let mut odd = audit(id, parent, kind, place);
        if let Some(years) = &self.years {
            let differences = years.differences(id, parent, kind, place.strategy);
            odd.extend(differences.into_iter().flatten().map(Oddity::Year));
        }
        odd
    }

    /// Returns a sentence for each setting whose absence leaves parts of documents uncompared.
    pub fn unaudited(&self) -> Vec<String> {
        let of_tables = self.tables.iter().filter(|tables| tables.level.is_none());
        let of_tables = of_tables.map(|tables| {
            let text = "entities.level is not set: digit 14 is not compared with the table";
            format!("{}: {text}", tables.pattern)
        });
        let of_sources = self.sources.iter().filter(|source| source.site.is_none());
        let of_sources = of_sources.map(|source| {
            format!("source {}: sources.flux is not set: digits 10 and 17 are not compared", source.name)
        });
        let of_kinds = self.kinds.iter().flatten().all(Option::is_none).then(|| {
            "flux.kinds is not set: no document is compared with the rule of its kind and its parent"
                .to_owned()
        });
        of_kinds.into_iter().chain(of_tables).chain(of_sources).collect()
    }

    fn find(&self, table: &TableIdentity<'_>) -> Found {
        let is_of = |source: &&FluxSource| table.is_table_of(&source.name, source.generation);
        let source = self.sources.iter().find(is_of);
        let site = source.and_then(|source| source.site);
        let matching = |tables: &FluxTables| {
            let numbers = tables.pattern.matches(&table.database, &table.table)?;
            // A pattern without `{db}` has number 0, which would say something.
            let database = has_database(&tables.pattern).then_some(numbers.database);
            let by_month = numbers.month.and(self.years).map(|_| Strategy::Month);
            Some(TablePlace {
                database: database.map(digits),
                partition: numbers.partition.map(digits),
                month: numbers.month.map(digits).map(month),
                level: tables.level,
                strategy: numbers.year.map(digits).map(Strategy::Year).or(by_month),
                ..TablePlace::default()
            })
        };
        let place = self.tables.iter().find_map(matching).unwrap_or_default();
        let (region, side) = (site.map(|(region, _)| region), site.map(|(_, side)| side));
        Found { place: TablePlace { region, side, ..place }, is_own: source.is_some() }
    }
}

fn has_database(pattern: &TablePattern) -> bool {
    let text = pattern.to_string();
    text.contains("{db}") || text.contains("{db:")
}

/// Returns a number of a name as digits. No identifier has a number above 255, nor the 255 that stands for it.
fn digits(number: u32) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

fn month(digits: u8) -> Month {
    if digits == NO_MONTH { Month::No } else { Month::Of(digits) }
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::change::Entity;
    use anabranch_schemas::flux::id::SYSTEM;
    use anabranch_schemas::flux::years::{CutOver, YearDigit};

    use super::*;

    fn places(kinds: &[(u8, Kind)]) -> FluxPlaces {
        let tables =
            |pattern: &str, level| FluxTables { pattern: TablePattern::parse(pattern).unwrap(), level };
        let source = |name: &str, generation, site| FluxSource { name: name.to_owned(), generation, site };
        FluxPlaces::new(
            SYSTEM,
            kinds,
            vec![
                tables("flux_00_{db}.atom_{partition:02}_{month:02}", Some(Level::Atom)),
                tables("flux_00_{db}.composite_{partition:02}_{month:02}", Some(Level::Composite)),
                tables("flux_history.document_{partition:02}", None),
            ],
            vec![
                source("main", 0, Some((Region::Singapore, Side::Main))),
                source("fail-over", 2, Some((Region::Singapore, Side::FailOver))),
                source("unknown", 0, None),
            ],
        )
    }

    fn table(source: &str, generation: u32, database: &str, table: &str) -> TableIdentity<'static> {
        let shard = ShardId::of(source, database, table, generation);
        let (database, table) = (database.to_owned().into(), table.to_owned().into());
        TableIdentity { entity: Entity::Flux, shard, database, table }
    }

    fn id(text: &str) -> FluxId {
        text.parse().unwrap()
    }

    /// An atom of business code 03 in Singapore's main database, partition 05, without a month.
    const REFUND_ATOM: &str = "2016060611031103099052400029904";
    /// Its composite.
    const REFUND: &str = "2016060611031003099052400029903";

    #[test]
    fn a_tables_name_entry_and_source_say_its_place() {
        let places = places(&[]);
        let site =
            |side| TablePlace { region: Some(Region::Singapore), side: Some(side), ..TablePlace::default() };
        let atoms = |month, place| TablePlace {
            database: Some(0),
            partition: Some(5),
            month: Some(month),
            level: Some(Level::Atom),
            ..place
        };
        let of_no_source = table("fail-over", 1, "flux_00_0", "atom_05_11");
        for (table, expected) in [
            (table("main", 0, "flux_00_0", "atom_05_99"), atoms(Month::No, site(Side::Main))),
            (table("fail-over", 2, "flux_00_0", "atom_05_00"), atoms(Month::Of(0), site(Side::FailOver))),
            (table("unknown", 0, "flux_00_0", "atom_05_11"), atoms(Month::Of(11), TablePlace::default())),
            // Another owner generation is another shard, and no source's.
            (of_no_source.clone(), atoms(Month::Of(11), TablePlace::default())),
            (
                table("main", 0, "flux_history", "document_17"),
                TablePlace { partition: Some(17), ..site(Side::Main) },
            ),
            (table("main", 0, "elsewhere", "atom_05_11"), site(Side::Main)),
        ] {
            let place = places.of_table(&table);
            assert_eq!(place, expected, "{table:?}");
            assert_eq!(places.of_table(&table), place, "as it is remembered");
            let is_own = table != of_no_source;
            assert_eq!(places.of_own_table(&table), is_own.then_some(place), "{table:?}");
        }
    }

    /// Places of tables by month and by year, whose identifiers have a year digit from 2027 on.
    fn places_by_year(kinds: &[(u8, Kind)]) -> FluxPlaces {
        let tables = |pattern: &str| FluxTables {
            pattern: TablePattern::parse(pattern).unwrap(),
            level: Some(Level::Composite),
        };
        let tables = vec![
            tables("flux_00_{db}.composite_{partition:02}_{month:02}"),
            tables("flux_00_{db}.composite_{partition:02}_{year}_{month:02}"),
            tables("flux_history.document_{partition:02}"),
        ];
        let sources = vec![FluxSource { name: "main".to_owned(), generation: 0, site: None }];
        let cut_over = CutOver::Date(jiff::civil::date(2027, 1, 1));
        let years = Years { cut_over, digit: YearDigit::First };
        FluxPlaces::new(SYSTEM, kinds, tables, sources).with_years(Some(years))
    }

    #[test]
    fn an_identifier_decides_which_strategy_holds_where_both_are_in_one_capture() {
        let places = places_by_year(&[(1, Kind::Recharge), (2, Kind::Capture)]);
        let (old, new) = ("2026120611031001011052400000001", "2027010611031001000057000000001");
        for (name, document, expected) in [
            ("composite_05_11", old, &[] as &[&str]),
            ("composite_05_7_00", new, &[]),
            ("composite_05_00", new, &["table_strategy"]),
            ("composite_05_2_11", old, &["table_strategy"]),
            ("composite_05_6_00", new, &["table_year"]),
            ("composite_06_7_00", new, &["table_partition"]),
            // This name says neither month nor year.
            ("document_05", old, &[]),
            ("document_05", new, &[]),
        ] {
            let database = if name.starts_with("document") { "flux_history" } else { "flux_00_0" };
            let odd = places.oddities(&table("main", 0, database, name), &id(document), None);
            assert_eq!(odd.iter().map(Oddity::reason).collect::<Vec<_>>(), expected, "{name} {document}");
        }
        // A capture after the cut-over has the year of its recharge's month.
        for (reserved, expected) in [("60", &[] as &[&str]), ("70", &["table_year", "parent_year"])] {
            let capture = id(&format!("202701031103100201105{reserved}00000002"));
            let of_december = table("main", 0, "flux_00_0", "composite_05_6_11");
            let odd = places.oddities(&of_december, &capture, Some(&id(old)));
            assert_eq!(odd.iter().map(Oddity::reason).collect::<Vec<_>>(), expected, "{reserved}");
        }
    }

    #[test]
    fn without_the_strategy_by_year_any_reserved_digits_are_in_place() {
        let places = places_by_year(&[]);
        let new = id("2027010611031001000057000000001");
        assert_eq!(places.strategy(&new), Strategy::Year(7));
        let places = places.with_years(None);
        assert_eq!(places.strategy(&new), Strategy::Month);
        assert_eq!(places.oddities(&table("main", 0, "flux_00_0", "composite_05_00"), &new, None), []);
    }

    #[test]
    fn a_code_names_a_kind_of_each_level() {
        let places = places(&[(3, Kind::Refund), (3, Kind::RefundClearing), (1, Kind::Recharge)]);
        assert_eq!(places.kind(&id(REFUND)), Some(Kind::Refund));
        assert_eq!(places.kind(&id(REFUND_ATOM)), Some(Kind::RefundClearing));
        assert_eq!(places.kind(&id("2016060611031101099052400029904")), None);
        assert_eq!(places.system(), SYSTEM);
    }

    #[test]
    fn a_document_is_audited_by_its_table_its_source_and_its_parent() {
        let places = places(&[(3, Kind::Refund), (3, Kind::RefundClearing)]);
        let reasons = |table: TableIdentity<'_>, parent: &str| {
            let odd = places.oddities(&table, &id(REFUND_ATOM), Some(&id(parent)));
            odd.iter().map(Oddity::reason).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(reasons(table("main", 0, "flux_00_0", "atom_05_99"), REFUND), "");
        assert_eq!(
            reasons(table("fail-over", 2, "flux_00_1", "atom_15_00"), REFUND),
            "database table_partition table_month source_side"
        );
        let next_user = REFUND.replace("03099052400029903", "03099062400029903");
        assert_eq!(reasons(table("main", 0, "flux_00_0", "atom_05_99"), &next_user), "parent_partition");
        assert_eq!(reasons(table("main", 0, "flux_00_0", "atom_05_99"), REFUND_ATOM), "parent_unfit");
    }

    #[test]
    fn a_refund_that_failed_over_by_itself_is_odd_where_its_own_digits_say() {
        let places = places(&[(3, Kind::Refund)]);
        let refund = id("2016060611031003199052400029903");
        let of_fail_over = table("fail-over", 2, "flux_00_0", "composite_05_99");
        for (recharge, expected) in [
            ("2016060611031001005052400029901", &["parent_failed_over_by_itself"][..]),
            ("2016060611031001105052400029901", &[]),
        ] {
            let odd = places.oddities(&of_fail_over, &refund, Some(&id(recharge)));
            assert_eq!(odd.iter().map(Oddity::reason).collect::<Vec<_>>(), expected, "{recharge}");
        }
    }

    #[test]
    fn a_table_whose_slots_are_all_taken_has_its_own_place_all_the_same() {
        let places = places(&[]);
        let wanted = table("main", 0, "flux_00_0", "atom_05_11");
        let slot = |probe: usize| (wanted.shard.as_u64() as usize).wrapping_add(probe) % SLOTS;
        let mut other = table("main", 0, "flux_00_0", "composite_17_99");
        for probe in 0..PROBES {
            other.shard = ShardId::from_u64(slot(probe) as u64).unwrap();
            assert_eq!(places.of_table(&other).partition, Some(17));
        }
        let slots = places.remembered.0.get().unwrap();
        assert!((0..PROBES).all(|probe| slots[slot(probe)].get().is_some()));
        assert_eq!(slots.iter().filter(|slot| slot.get().is_some()).count(), PROBES);
        for _ in 0..2 {
            assert_eq!(places.of_table(&wanted).partition, Some(5), "no slot is left");
        }
        assert_eq!(places.of_table(&other).partition, Some(17), "the last one is remembered");
    }

    #[test]
    fn settings_that_are_left_out_are_said() {
        assert_eq!(
            places(&[]).unaudited(),
            [
                "flux.kinds is not set: no document is compared with the rule of its kind and its parent",
                "flux_history.document_{partition:02}: entities.level is not set: digit 14 is not compared with the \
                 table",
                "source unknown: sources.flux is not set: digits 10 and 17 are not compared",
            ]
        );
        assert_eq!(places(&[(3, Kind::Refund)]).unaudited().len(), 2);
    }
}
