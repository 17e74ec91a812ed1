//! TraceLogging metadata and payload, built field by field.

/// The two halves of a self-describing event.
#[derive(Debug, Clone, Default)]
pub struct Description {
    /// What follows the size in the metadata.
    metadata: Vec<u8>,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Description {
    /// An event of that name.
    pub fn new(name: &str) -> Self {
        let mut metadata = vec![0];
        metadata.extend(name.bytes().chain([0]));
        Self {
            metadata,
            payload: Vec::new(),
        }
    }

    /// A field: its types, and its bytes in the payload.
    pub fn field(&mut self, name: &str, in_type: u8, out_type: u8, bytes: &[u8]) {
        self.name_and_types(name, in_type, out_type);
        self.payload.extend(bytes);
    }

    /// A field with an array of a fixed count, or of one that is written in front of it.
    pub fn array(&mut self, name: &str, in_type: u8, out_type: u8, fixed: bool, elements: &[Vec<u8>]) {
        let count = (elements.len() as u16).to_le_bytes();
        self.name_and_types(name, in_type | if fixed { 0x20 } else { 0x40 }, out_type);
        if fixed {
            self.metadata.extend(count);
        } else {
            self.payload.extend(count);
        }
        self.payload.extend(elements.iter().flatten());
    }

    /// A struct of that many fields; these follow.
    pub fn structure(&mut self, name: &str, members: u8) {
        self.name_and_types(name, 24, members);
    }

    fn name_and_types(&mut self, name: &str, in_type: u8, out_type: u8) {
        self.metadata.extend(name.bytes().chain([0]));
        if out_type == 0 {
            self.metadata.push(in_type);
        } else {
            self.metadata.extend([in_type | 0x80, out_type]);
        }
    }

    /// The metadata with its size.
    pub fn metadata(&self) -> Vec<u8> {
        let size = (self.metadata.len() + 2) as u16;
        let mut bytes = size.to_le_bytes().to_vec();
        bytes.extend(&self.metadata);
        bytes
    }
}

/// Provider traits that hold a name only.
pub fn traits(name: &str) -> Vec<u8> {
    let size = (name.len() + 3) as u16;
    let mut bytes = size.to_le_bytes().to_vec();
    bytes.extend(name.bytes().chain([0]));
    bytes
}
