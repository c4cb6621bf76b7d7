//! What a model file can lie about, one variant each, with the numbers that show the lie.

use thiserror::Error;

use super::input::LONGEST_HEAD;

/// Why a model file was refused.
///
/// Sizes are bytes and positions are byte offsets in the file unless the variant says otherwise.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum LoadError {
    /// The first four bytes name no format that is read here.
    #[error("not a model file: it begins with {found}, not with \"GGUF\" or \"TGPT\"")]
    Magic {
        /// The first bytes, escaped.
        found: String,
    },
    /// The first four bytes of a file that should be an adapter.
    #[error(
        "not an adapter: it begins with {found}, not with \"TGLA\"; one of PEFT's is a directory"
    )]
    AdapterMagic {
        /// The first bytes, escaped.
        found: String,
    },
    /// A pipe, a device or a socket has the name.
    #[error("not a regular file")]
    NotAFile,
    /// A known format in a version that is not read.
    #[error("{format} version {found} is not read: {hint}")]
    Version {
        /// Name of the format.
        format: &'static str,
        /// Version number in the file.
        found: u32,
        /// What the user can do.
        hint: &'static str,
    },
    /// The file ends before something that its own structure demands.
    #[error("the file ends inside {what}: {need} bytes are needed at byte {at}, {left} are left")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Bytes needed.
        need: u64,
        /// Where they should begin.
        at: usize,
        /// Bytes that are there.
        left: usize,
    },
    /// The file was cut short after it was opened.
    #[error("the file was cut short: {need} bytes are needed at byte {at}, it has {have} now")]
    Cut {
        /// Where the bytes should begin.
        at: usize,
        /// Bytes needed.
        need: usize,
        /// Bytes of the whole file.
        have: u64,
    },
    /// The file of packed weights has another matrix where the reader wants this one.
    #[error("matrix {index} of the packed weights is not the {n} x {k} one that is wanted")]
    Kept {
        /// Its place among them.
        index: usize,
        /// Outputs.
        n: usize,
        /// Inputs.
        k: usize,
    },
    /// The system could not read the file.
    #[error("reading {need} bytes at byte {at}: {reason}")]
    Read {
        /// Where the bytes begin.
        at: usize,
        /// Bytes needed.
        need: usize,
        /// What the system said.
        reason: String,
    },
    /// What comes before the tensors does not end where every real file's has.
    #[error(
        "what comes before the tensors reaches to byte {need}, at most {LONGEST_HEAD} are read"
    )]
    LongHead {
        /// How much of the file would have to be read.
        need: usize,
    },
    /// A count that the rest of the file cannot hold, refused before anything is allocated.
    #[error(
        "the file claims {count} {what} of at least {each} bytes, but only {left} bytes are left"
    )]
    Count {
        /// What is counted.
        what: &'static str,
        /// The claim.
        count: u64,
        /// Smallest size of one.
        each: usize,
        /// Bytes left.
        left: usize,
    },
    /// A name or string that must be text and is not.
    #[error("{what} is not UTF-8")]
    NotUtf8 {
        /// Which string.
        what: String,
    },
    /// The JSON header of a `.tinygpt` file does not parse.
    #[error("the JSON header is not valid: {reason}")]
    Header {
        /// What the parser said, with line and column.
        reason: String,
    },
    /// A file that should be JSON, and of what it should be.
    #[error("not valid JSON: {reason}")]
    Json {
        /// What the parser said, with line and column.
        reason: String,
    },
    /// A metadata value type number that GGUF does not define.
    #[error("metadata key \"{key}\" has the unknown value type {found}")]
    ValueType {
        /// The key.
        key: String,
        /// Type number in the file.
        found: u32,
    },
    /// A boolean stored as something else than 0 or 1.
    #[error("metadata key \"{key}\" holds a boolean with the value {found}")]
    Boolean {
        /// The key.
        key: String,
        /// The byte found.
        found: u8,
    },
    /// Arrays of arrays beyond what any real file uses.
    #[error("metadata key \"{key}\" nests arrays deeper than {limit}")]
    Nesting {
        /// The key.
        key: String,
        /// Deepest nesting that is read.
        limit: usize,
    },
    /// The same metadata key or tensor name twice.
    #[error("{what} \"{name}\" appears twice")]
    Duplicate {
        /// "metadata key" or "tensor".
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A metadata key that the architecture needs is absent.
    #[error("metadata key \"{key}\" is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A metadata key holds a value of the wrong kind.
    #[error("metadata key \"{key}\" should be {expected} and is {found}")]
    WrongKind {
        /// The key.
        key: String,
        /// What it should hold.
        expected: &'static str,
        /// What it holds.
        found: String,
    },
    /// A number outside what the format or the architecture allows.
    #[error("{what} is {found}, which is not {expected}")]
    OutOfRange {
        /// Which number.
        what: String,
        /// The number, as text.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// Something that changes the arithmetic and is not implemented.
    #[error("{what} is not supported: {detail}")]
    Unsupported {
        /// Key or feature, by name.
        what: String,
        /// The value found, and what is supported.
        detail: String,
    },
    /// A tensor element type number that ggml does not define.
    #[error("tensor \"{tensor}\" has the unknown ggml type {found}")]
    UnknownType {
        /// The tensor.
        tensor: String,
        /// Type number in the file.
        found: u32,
    },
    /// A tensor with more dimensions than GGUF allows.
    #[error("tensor \"{tensor}\" claims {found} dimensions, at most {limit} are allowed")]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// The claim.
        found: u32,
        /// The most that is read.
        limit: usize,
    },
    /// Dimensions whose product, or size in bytes, overflows.
    #[error("the size of tensor \"{tensor}\" with dimensions {dims:?} overflows")]
    Overflow {
        /// The tensor.
        tensor: String,
        /// Its dimensions as stored.
        dims: Vec<u64>,
    },
    /// Rows that are not a whole number of quantisation blocks.
    #[error(
        "tensor \"{tensor}\": rows of {row} elements are not a multiple of the {block}-element \
         blocks of {dtype}"
    )]
    BlockSize {
        /// The tensor.
        tensor: String,
        /// Elements in a row.
        row: u64,
        /// Elements in a block.
        block: usize,
        /// Element type.
        dtype: &'static str,
    },
    /// Tensor data that does not begin at a multiple of the alignment.
    #[error("tensor \"{tensor}\" begins at {offset}, which is not a multiple of {alignment}")]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Tensor data that reaches past the end of the data section.
    #[error("tensor \"{tensor}\" needs bytes {begin}..{end} of a data section of {have} bytes")]
    TensorData {
        /// The tensor.
        tensor: String,
        /// First byte in the data section.
        begin: u64,
        /// One past the last byte (saturating).
        end: u64,
        /// Size of the data section.
        have: usize,
    },
    /// Something is wrong in one of a directory's files.
    #[error("{file}: {error}")]
    In {
        /// Its name in the directory.
        file: String,
        /// What is wrong.
        error: Box<LoadError>,
    },
    /// A directory without a file that its model needs.
    #[error("the directory has no {file}")]
    Absent {
        /// Which one.
        file: String,
    },
    /// An index that names a file that is none of the directory's.
    #[error("\"{name}\" is not the name of a .safetensors file in the directory")]
    Elsewhere {
        /// The name.
        name: String,
    },
    /// A tensor that is not in the file where the index has it.
    #[error("tensor \"{tensor}\" should be in {file}, which does not have it")]
    Misplaced {
        /// The tensor.
        tensor: String,
        /// The file.
        file: String,
    },
    /// An element type that safetensors does not define.
    #[error("tensor \"{tensor}\" has the unknown element type \"{found}\"")]
    ElementType {
        /// The tensor.
        tensor: String,
        /// Name in the file.
        found: String,
    },
    /// A tensor whose place has not the size of its elements.
    #[error(
        "tensor \"{tensor}\" of {shape:?} elements of {dtype} takes {need} bytes and has {found}"
    )]
    ByteCount {
        /// The tensor.
        tensor: String,
        /// Element type.
        dtype: &'static str,
        /// Shape in the file, outermost first.
        shape: Vec<u64>,
        /// Bytes of the elements.
        need: u64,
        /// Bytes of the place.
        found: u64,
    },
    /// Bytes that no tensor has.
    #[error("bytes {begin}..{end} of the data belong to no tensor")]
    Hole {
        /// The first of them.
        begin: usize,
        /// One past the last.
        end: usize,
    },
    /// Two tensors that share bytes.
    #[error("tensors \"{first}\" and \"{second}\" overlap")]
    Overlap {
        /// The tensor that begins first.
        first: String,
        /// The tensor that begins inside it.
        second: String,
    },
    /// A tensor that the architecture needs is absent.
    #[error("tensor \"{tensor}\" is missing")]
    MissingTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor that the architecture does not know; ignoring it would change the arithmetic.
    #[error("tensor \"{tensor}\" has no place in the architecture \"{architecture}\"")]
    UnexpectedTensor {
        /// The tensor.
        tensor: String,
        /// The architecture.
        architecture: &'static str,
    },
    /// A weight with which no logit is a number.
    #[error("tensor \"{tensor}\" holds the weight {found}, which is no finite number")]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// The weight, or the scale of some.
        found: String,
    },
    /// A tensor whose shape contradicts the model's dimensions.
    #[error("tensor \"{tensor}\" has the shape {found:?}, expected {expected:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Shape that follows from the dimensions, outermost first.
        expected: Vec<u64>,
        /// Shape in the file, outermost first.
        found: Vec<u64>,
    },
    /// A part of an adapter for a layer that the model does not have, or that no adapter may
    /// change.
    #[error(
        "\"{module}\" is none of what adapters change in this model: the projections of attention \
         and MLP in each of its {layers} layers"
    )]
    NotAdaptable {
        /// The layer's name in the adapter.
        module: String,
        /// L
        layers: usize,
    },
    /// A part of an adapter for a layer of another size.
    #[error("\"{module}\" adapts weights {found:?}, the model's are {expected:?}")]
    AdapterShape {
        /// The layer's name in the adapter.
        module: String,
        /// `[out, in]` in the adapter.
        found: [usize; 2],
        /// `[out, in]` in the model.
        expected: [usize; 2],
    },
    /// A body whose size is not what the header promises.
    #[error("the body has {found} bytes, the header's {layout} layout needs {expected}")]
    BodySize {
        /// Name of the layout.
        layout: &'static str,
        /// Size that follows from the manifest.
        expected: u64,
        /// Size in the file.
        found: usize,
    },
}

impl LoadError {
    /// The same, of a file called `file`.
    pub(super) fn within(self, file: &str) -> Self {
        match self {
            Self::In { .. } => self,
            error => Self::In { file: file.into(), error: Box::new(error) },
        }
    }
}
