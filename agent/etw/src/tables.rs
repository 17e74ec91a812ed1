//! Schemas that records do not carry: events of manifests and of the kernel logger, as text tables that a user can extend.
//!
//! Used by the decoder where a file has no schema of its own, and by the writer. `data/*.tsv` is compiled in; a user's files
//! are added at run time and take precedence. `data/README.md` describes the format and where each table comes from.
//! Does not: query Windows.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::guid::Guid;
use crate::schema::Schema;

mod parse;
mod provider;

pub use parse::TableError;
pub use provider::{Provider, ProviderKind};

/// Providers and schemas by id.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    providers: HashMap<Guid, Provider>,
    names: HashMap<Box<str>, Guid>,
    events: HashMap<(Guid, u16), Versions>,
    classes: HashMap<(Guid, u8), Versions>,
}

/// Schemas by version. Later versions append fields, so a neighbouring version decodes the fields that both have.
type Versions = BTreeMap<u8, Arc<Schema>>;

impl Tables {
    /// Tables without rows.
    pub fn empty() -> Self {
        Self::default()
    }

    /// The tables that are compiled in.
    pub fn built_in() -> Self {
        let mut tables = Self::empty();
        for (name, text) in BUILT_IN {
            // A test holds that all of them are accepted.
            let _ = tables.extend(name, text);
        }
        tables
    }

    /// Adds the rows of a table, which errors call `name`; returns their number.
    ///
    /// # Errors
    /// At the first malformed row; no row is added then.
    pub fn extend(&mut self, name: &str, text: &str) -> Result<usize, TableError> {
        let rows = parse::rows(name, text, |provider| self.names.get(provider).copied())?;
        let count = rows.len();
        for row in rows {
            match row {
                parse::Row::Provider(provider) => self.add_provider(provider),
                parse::Row::Event {
                    provider,
                    id,
                    version,
                    schema,
                } => {
                    let schema = self.named(provider, schema);
                    self.events.entry((provider, id)).or_default().insert(version, schema);
                }
                parse::Row::Class {
                    class,
                    opcode,
                    version,
                    schema,
                } => {
                    let schema = self.named(class, schema);
                    self.classes.entry((class, opcode)).or_default().insert(version, schema);
                }
            }
        }
        Ok(count)
    }

    fn add_provider(&mut self, provider: Provider) {
        self.names.insert((*provider.name).into(), provider.guid);
        self.providers.insert(provider.guid, provider);
    }

    fn named(&self, provider: Guid, mut schema: Schema) -> Arc<Schema> {
        schema.provider_name = self.provider(provider).map(|provider| provider.name.clone());
        Arc::new(schema)
    }

    /// The provider of that GUID.
    pub fn provider(&self, guid: Guid) -> Option<&Provider> {
        self.providers.get(&guid)
    }

    /// The provider of that name.
    pub fn provider_named(&self, name: &str) -> Option<&Provider> {
        self.providers.get(self.names.get(name)?)
    }

    /// All providers, in no order.
    pub fn providers(&self) -> impl Iterator<Item = &Provider> {
        self.providers.values()
    }

    /// The schema of a manifest event: of that version, else the next lower one, else the lowest.
    pub fn event(&self, provider: Guid, id: u16, version: u8) -> Option<&Arc<Schema>> {
        nearest(self.events.get(&(provider, id))?, version)
    }

    /// The schema of a classic event, by the same rule.
    pub fn class(&self, class: Guid, opcode: u8, version: u8) -> Option<&Arc<Schema>> {
        nearest(self.classes.get(&(class, opcode))?, version)
    }

    /// Every manifest schema, as (provider, id, version, schema), in no order.
    pub fn events(&self) -> impl Iterator<Item = (Guid, u16, u8, &Arc<Schema>)> {
        self.events.iter().flat_map(|(&(provider, id), versions)| {
            versions
                .iter()
                .map(move |(&version, schema)| (provider, id, version, schema))
        })
    }
}

fn nearest(versions: &Versions, version: u8) -> Option<&Arc<Schema>> {
    versions
        .range(..=version)
        .next_back()
        .or_else(|| versions.first_key_value())
        .map(|(_, schema)| schema)
}

/// Providers first: the others refer to their names.
const BUILT_IN: [(&str, &str); 12] = [
    ("providers.tsv", include_str!("../data/providers.tsv")),
    ("kernel-logger.tsv", include_str!("../data/kernel-logger.tsv")),
    ("dns-client.tsv", include_str!("../data/dns-client.tsv")),
    ("hyper-v-computelib.tsv", include_str!("../data/hyper-v-computelib.tsv")),
    ("hyper-v-compute.tsv", include_str!("../data/hyper-v-compute.tsv")),
    ("kernel-network.tsv", include_str!("../data/kernel-network.tsv")),
    ("kernel-process.tsv", include_str!("../data/kernel-process.tsv")),
    ("network-setup.tsv", include_str!("../data/network-setup.tsv")),
    ("rpc.tsv", include_str!("../data/rpc.tsv")),
    ("tcpip.tsv", include_str!("../data/tcpip.tsv")),
    ("winnat.tsv", include_str!("../data/winnat.tsv")),
    (
        "winsock-nameresolution.tsv",
        include_str!("../data/winsock-nameresolution.tsv"),
    ),
];

#[cfg(test)]
mod tests;
