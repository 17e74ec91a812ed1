//! The decoded events of a file.
//!
//! Used by replay. Does not: hold the file in memory.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

use super::error::EtlError;
use super::filter::Filter;
use super::reader::{EtlReader, ReadOptions};
use super::session::SessionHeader;
use super::statistics::EtlStatistics;
use crate::decoder::{DecodeCounts, Decoded, Decoder};
use crate::event::EtwEvent;

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
    /// Reads any input that seeks.
    pub fn new(input: R, options: ReadOptions, decoder: Decoder) -> Result<Self, EtlError> {
        Ok(Self {
            reader: EtlReader::new(input, options)?,
            decoder,
        })
    }

    /// The next event; `None` at the end.
    ///
    /// # Errors
    /// When a buffer cannot be read. The next call skips it and continues.
    pub fn next_event(&mut self) -> Result<Option<EtwEvent>, EtlError> {
        while let Some(record) = self.reader.next_record()? {
            if let Decoded::Event(event) = self.decoder.decode_view(&record) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// The header that the session wrote.
    pub const fn session(&self) -> &SessionHeader {
        self.reader.session()
    }

    /// Counts of what was read so far, and of what was not.
    pub const fn statistics(&self) -> &EtlStatistics {
        self.reader.statistics()
    }

    /// Counts of what was decoded so far, and of what was not.
    pub const fn counts(&self) -> DecodeCounts {
        self.decoder.counts()
    }

    /// The decoder, with the schemas that it has learned.
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

/// Lets a decoder learn all schemas in a file before its events are read. Merging puts each schema in front of its first event,
/// so only files that were put together by other means need this; it reads the whole file.
///
/// # Errors
/// When the file cannot be read.
pub fn learn_schemas<R: Read + Seek>(input: R, decoder: Decoder) -> Result<Decoder, EtlError> {
    let options = ReadOptions {
        filter: Filter::schemas(),
        ..ReadOptions::default()
    };
    let mut records = EtlEvents::new(input, options, decoder)?;
    while records.next_event()?.is_some() {}
    Ok(records.into_decoder())
}
