//! `.etl` files: what an ETW session wrote, as records in time order.
//!
//! Used by replay, through [`EtlEvents`], and by tests through [`EtlReader`]. Reads each buffer twice at most: its head
//! for the index, then whole, when its time has come; so memory is bounded by what overlaps in time, not by the file.
//! A file that is cut off, damaged or hostile gives what is readable; the rest is counted in [`EtlStatistics`].
//! Does not: write files (that is the `writer` feature), or repair them.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use crate::decoder::{DecodeCounts, Decoded, Decoder};
use crate::event::EtwEvent;

mod block;
mod buffer;
mod filter;
mod index;
mod lz77;
mod reader;
mod record;
mod session;
mod statistics;

pub use filter::Filter;
pub use reader::{EtlReader, ReadOptions};
pub use session::{ClockKind, SessionHeader};
pub use statistics::EtlStatistics;

/// A file that cannot be opened or read on.
#[derive(Debug, thiserror::Error)]
pub enum EtlError {
    /// The system refused to read.
    #[error("cannot read the .etl file at byte {offset}")]
    Read {
        /// Where in the file.
        offset: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file has no trace buffer in it.
    #[error("not an .etl file: no trace buffer in its {bytes} bytes")]
    NotEtl {
        /// Its size.
        bytes: u64,
    },
}

/// The events of a file, decoded, in time order.
#[derive(Debug)]
pub struct EtlEvents<R> {
    reader: EtlReader<R>,
    decoder: Decoder,
}

impl EtlEvents<File> {
    /// Opens a file.
    pub fn open(path: &Path, options: ReadOptions, decoder: Decoder) -> Result<Self, EtlError> {
        let file = File::open(path).map_err(|source| EtlError::Read { offset: 0, source })?;
        Self::new(file, options, decoder)
    }
}

impl<R: Read + Seek> EtlEvents<R> {
    /// From anything that can be read at any place.
    pub fn new(input: R, options: ReadOptions, decoder: Decoder) -> Result<Self, EtlError> {
        Ok(Self {
            reader: EtlReader::new(input, options)?,
            decoder,
        })
    }

    /// The next event; `None` at the end. After an error the buffer it is about is skipped, and reading can go on.
    pub fn next_event(&mut self) -> Result<Option<EtwEvent>, EtlError> {
        while let Some(record) = self.reader.next_record()? {
            if let Decoded::Event(event) = self.decoder.decode_view(&record) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// What the file says about the session that wrote it.
    pub const fn session(&self) -> &SessionHeader {
        self.reader.session()
    }

    /// What has been read so far, and what not.
    pub const fn statistics(&self) -> &EtlStatistics {
        self.reader.statistics()
    }

    /// What has been decoded so far, and what not.
    pub const fn counts(&self) -> DecodeCounts {
        self.decoder.counts()
    }

    /// The decoder, with what it has learned.
    pub fn into_decoder(self) -> Decoder {
        self.decoder
    }

    /// The decoder, for instance to take its tables.
    pub const fn decoder(&self) -> &Decoder {
        &self.decoder
    }
}

impl<R: Read + Seek> Iterator for EtlEvents<R> {
    type Item = Result<EtwEvent, EtlError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_event().transpose()
    }
}

/// Teaches a decoder all schemas a file holds, before its events are read. Merging puts each one in front of its first
/// event, so this is for files that something else has put together; it reads the whole file.
pub fn learn_schemas<R: Read + Seek>(input: R, decoder: Decoder) -> Result<Decoder, EtlError> {
    let options = ReadOptions {
        filter: Filter::schemas(),
        ..ReadOptions::default()
    };
    let mut records = EtlEvents::new(input, options, decoder)?;
    while records.next_event()?.is_some() {}
    Ok(records.into_decoder())
}

#[cfg(test)]
mod tests;
