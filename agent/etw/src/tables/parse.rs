//! Parses the text of a table, row by row, into schemas.
//!
//! Used by `tables` for the built-in tables (`agent/etw/data/*.tsv`), which a test parses. The first line names the columns,
//! in any order; the set of columns decides what a row is. Does not: add rows.

use std::collections::HashMap;

use super::provider::{Provider, ProviderKind};
use crate::guid::Guid;
use crate::schema::{Count, FieldSpec, Kind, Length, Out, Schema};

/// One row of a table.
pub enum Row {
    /// A provider with its name, GUID and kind.
    Provider(Provider),
    /// The layout of one version of a manifest's event.
    Event {
        provider: Guid,
        id: u16,
        version: u8,
        schema: Schema,
    },
    /// The layout of one version of a classic event (MOF).
    Class {
        class: Guid,
        opcode: u8,
        version: u8,
        schema: Schema,
    },
}

/// Why a table is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The first line names no set of columns that a table has.
    #[error(
        "cannot read ETW table '{table}': its first line names none of the column sets \
         'provider guid kind', 'provider event_id version fields', 'guid opcode version fields'"
    )]
    Columns {
        /// The table's name.
        table: Box<str>,
    },
    /// A cell is malformed.
    #[error("cannot read ETW table '{table}': line {line}: {problem}")]
    Row {
        /// The table's name.
        table: Box<str>,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: Box<str>,
    },
}

/// All rows of `text`; `known` maps names of providers to GUIDs.
///
/// # Errors
/// For the first cell that is malformed, and for a first line with other columns.
pub fn rows(table: &str, text: &str, known: impl Fn(&str) -> Option<Guid>) -> Result<Vec<Row>, TableError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| is_row(line));
    let columns = lines.next().map(|(_, line)| Columns::of(line)).unwrap_or_default();
    let row_of: RowOf = if columns.has(&["provider", "event_id", "version", "fields"]) {
        event_row
    } else if columns.has(&["guid", "opcode", "version", "fields"]) {
        class_row
    } else if columns.has(&["provider", "guid", "kind"]) {
        provider_row
    } else {
        return Err(TableError::Columns { table: table.into() });
    };
    lines
        .map(|(index, line)| {
            let cells = Cells {
                columns: &columns,
                cells: line.split('\t').collect(),
            };
            row_of(&cells, &known).map_err(|problem| TableError::Row {
                table: table.into(),
                line: index + 1,
                problem,
            })
        })
        .collect()
}

/// Reads one row of a table of certain columns.
type RowOf = fn(&Cells<'_>, &Known<'_>) -> Result<Row, Box<str>>;

/// Whether a line holds a row: it is not empty and no comment.
fn is_row(line: &str) -> bool {
    !line.trim().is_empty() && !line.starts_with('#')
}

/// The index of each column; text after a space in its title is a remark.
#[derive(Default)]
struct Columns(HashMap<Box<str>, usize>);

impl Columns {
    fn of(line: &str) -> Self {
        let titles = line
            .split('\t')
            .map(|title| title.split(' ').next().unwrap_or_default());
        Self(titles.enumerate().map(|(index, title)| (title.into(), index)).collect())
    }

    fn has(&self, titles: &[&str]) -> bool {
        titles.iter().all(|title| self.0.contains_key(*title))
    }
}

/// One line, cell by cell. A cell beyond its end is empty.
struct Cells<'a> {
    columns: &'a Columns,
    cells: Vec<&'a str>,
}

impl<'a> Cells<'a> {
    fn text(&self, title: &str) -> &'a str {
        let index = self.columns.0.get(title);
        index
            .and_then(|&index| self.cells.get(index))
            .map_or("", |cell| cell.trim())
    }

    fn number<T: std::str::FromStr>(&self, title: &str) -> Result<T, Box<str>> {
        let text = self.text(title);
        text.parse()
            .map_err(|_| format!("{title} '{text}' is not a number in range").into())
    }

    fn guid(&self, title: &str) -> Result<Guid, Box<str>> {
        let text = self.text(title);
        text.parse()
            .map_err(|_| format!("{title} '{text}' is not a GUID").into())
    }
}

/// The GUID of a provider by its name, from the tables that were read before.
type Known<'a> = dyn Fn(&str) -> Option<Guid> + 'a;

fn provider_row(cells: &Cells<'_>, _: &Known<'_>) -> Result<Row, Box<str>> {
    let kind = match cells.text("kind") {
        "tracelogging" => ProviderKind::TraceLogging,
        "manifest" => ProviderKind::Manifest,
        "mof" => ProviderKind::Mof,
        "wpp" => ProviderKind::Wpp,
        "unknown" => ProviderKind::Unknown,
        other => return Err(format!("kind '{other}' is none of tracelogging, manifest, mof, wpp, unknown").into()),
    };
    Ok(Row::Provider(Provider {
        name: cells.text("provider").into(),
        guid: cells.guid("guid")?,
        kind,
    }))
}

fn event_row(cells: &Cells<'_>, known: &Known<'_>) -> Result<Row, Box<str>> {
    let text = cells.text("provider");
    let provider = known(text)
        .or_else(|| text.parse().ok())
        .ok_or_else(|| format!("provider '{text}' is neither known nor a GUID"))?;
    Ok(Row::Event {
        provider,
        id: cells.number("event_id")?,
        version: cells.number("version")?,
        schema: schema(cells)?,
    })
}

fn class_row(cells: &Cells<'_>, _: &Known<'_>) -> Result<Row, Box<str>> {
    Ok(Row::Class {
        class: cells.guid("guid")?,
        opcode: cells.number("opcode")?,
        version: cells.number("version")?,
        schema: schema(cells)?,
    })
}

/// The schema in a row: an optional name, and fields separated by commas.
fn schema(cells: &Cells<'_>) -> Result<Schema, Box<str>> {
    let name = cells.text("name");
    let mut fields = Vec::new();
    let mut slots = 0;
    for text in cells
        .text("fields")
        .split(',')
        .map(str::trim)
        .filter(|text| !text.is_empty())
    {
        let field = field(text, &mut fields, &mut slots)?;
        fields.push(field);
    }
    Ok(Schema {
        name: (!name.is_empty()).then(|| name.into()),
        provider_name: None,
        fields: fields.into(),
        slots,
    })
}

/// `Type Name*Count[Length]:meaning`, the last three optional.
fn field(text: &str, earlier: &mut [FieldSpec], slots: &mut u16) -> Result<FieldSpec, Box<str>> {
    let (type_name, rest) = text
        .split_once(' ')
        .ok_or_else(|| format!("field '{text}' has no name"))?;
    let kind = kind(type_name).ok_or_else(|| format!("type '{type_name}' is not known"))?;
    let (rest, meaning) = rest.split_once(':').unwrap_or((rest, ""));
    let out = out(meaning).ok_or_else(|| format!("meaning '{meaning}' is not known"))?;
    let (rest, length) = match rest.split_once('[') {
        Some((rest, length)) => {
            let length = length
                .strip_suffix(']')
                .ok_or_else(|| format!("'{text}' lacks its ']'"))?;
            (rest, Some(reference(length, earlier, slots)?))
        }
        None => (rest, None),
    };
    let (name, count) = match rest.split_once('*') {
        Some((name, count)) => (name, Some(reference(count, earlier, slots)?)),
        None => (rest, None),
    };
    Ok(FieldSpec {
        count: count.map_or(Count::One, |reference| match reference {
            Reference::Number(count) => Count::Fixed(count),
            Reference::Slot(slot) => Count::Slot(slot),
        }),
        length: length.map_or(Length::Natural, |reference| match reference {
            Reference::Number(length) => Length::Fixed(length),
            Reference::Slot(slot) => Length::Slot(slot),
        }),
        ..FieldSpec::new(name.trim(), kind, out)
    })
}

/// A length or count.
enum Reference {
    /// Fixed.
    Number(u16),
    /// The value of an earlier field, by the slot that keeps it.
    Slot(u16),
}

/// A number, or the name of an earlier field. A field that is referred to for the first time gets a slot.
fn reference(text: &str, earlier: &mut [FieldSpec], slots: &mut u16) -> Result<Reference, Box<str>> {
    if let Ok(number) = text.parse() {
        return Ok(Reference::Number(number));
    }
    let target = position(earlier, text)
        .and_then(|index| earlier.get_mut(index))
        .ok_or_else(|| format!("'{text}' is no earlier field"))?;
    let slot = *target.slot.get_or_insert_with(|| {
        *slots += 1;
        *slots - 1
    });
    Ok(Reference::Slot(slot))
}

/// The type names of manifests (`win:UnicodeString` without its prefix; winmeta.xml), and `WbemSid` of MOF classes.
fn kind(name: &str) -> Option<Kind> {
    Some(match name {
        "UnicodeString" => Kind::Utf16,
        "AnsiString" => Kind::Ansi,
        "Int8" => Kind::Int(1),
        "UInt8" => Kind::UInt(1),
        "Int16" => Kind::Int(2),
        "UInt16" => Kind::UInt(2),
        "Int32" => Kind::Int(4),
        "UInt32" => Kind::UInt(4),
        "Int64" => Kind::Int(8),
        "UInt64" => Kind::UInt(8),
        "Float" => Kind::F32,
        "Double" => Kind::F64,
        "Boolean" => Kind::Bool32,
        "Binary" => Kind::Binary,
        "GUID" => Kind::Guid,
        "Pointer" => Kind::Pointer,
        "FILETIME" => Kind::FileTime,
        "SYSTEMTIME" => Kind::SystemTime,
        "SID" => Kind::Sid,
        "WbemSid" => Kind::WbemSid,
        _ => return None,
    })
}

/// What a value means beyond its type, in the words of the tables.
fn out(meaning: &str) -> Option<Out> {
    Some(match meaning {
        "" => Out::Plain,
        "bool" => Out::Bool,
        "text" => Out::Text,
        "port" => Out::Port,
        "ipv4" => Out::Ipv4,
        "ipv6" => Out::Ipv6,
        "address" => Out::Address,
        "code" => Out::Code,
        "filetime" => Out::FileTime,
        _ => return None,
    })
}

/// The index of the field of that name: what a length or count refers to.
fn position(fields: &[FieldSpec], name: &str) -> Option<usize> {
    fields.iter().rposition(|field| &*field.name == name)
}
