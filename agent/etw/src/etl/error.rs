//! Why an `.etl` file cannot be read.
//!
//! Used by the reader. Does not: cover damage inside a file; that is counted.

use std::io;

/// Why a file cannot be read, or not any further.
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
