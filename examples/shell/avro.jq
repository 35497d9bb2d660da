# Encode a JSON value as Avro, in hexadecimal digits, with the registry's schema.
# Usage: jq -r --argjson schema SCHEMA 'include "avro"; encode($schema)'
#
# It covers the parts of Avro that Stepstream's records use. Omitted fields take the schema's defaults, a union takes
# its first matching branch, and type names refer to the same schema. Integers are exact up to 2^53.

def hex($digits):
  reduce range($digits) as $place ({rest: ., text: ""};
    {text: ("0123456789abcdef"[.rest % 16 : .rest % 16 + 1] + .text), rest: (.rest / 16 | floor)})
  | .text;

# Hexadecimal bytes of a number, least significant first.
def little($bytes):
  reduce range($bytes) as $place ({rest: ., text: ""};
    {text: (.text + (.rest - (.rest / 256 | floor) * 256 | hex(2))), rest: (.rest / 256 | floor)})
  | .text;

def varint:
  (if . < 0 then -2 * . - 1 else 2 * . end)
  | {rest: ., text: ""}
  | until(.rest < 128;
      {text: (.text + (.rest - (.rest / 128 | floor) * 128 + 128 | hex(2))), rest: (.rest / 128 | floor)})
  | .text + (.rest | hex(2));

# IEEE 754 bits. A `double` is split into its high and low 32 bits: jq's integers are exact only up to 2^53.
def ieee($exponent_bits; $high_bits):
  if . == 0 then {high: 0, low: 0}
  else
    (if . < 0 then 1 else 0 end) as $sign
    | fabs | frexp as [$mantissa, $exponent]
    | ($mantissa * 2 - 1) as $fraction
    | ($fraction * pow(2; $high_bits)) as $scaled
    | {
        high: ((($sign * pow(2; $exponent_bits) + $exponent - 2 + pow(2; $exponent_bits - 1)) * pow(2; $high_bits))
               + ($scaled | if $high_bits == 23 then round else floor end)),
        low: (($scaled - ($scaled | floor)) * pow(2; 32))
      }
  end;

# Length as varint, then the bytes in UTF-8.
def text:
  (utf8bytelength | varint)
  + ([@uri | scan("%[0-9A-F]{2}|[^%]") | if length == 3 then .[1:] | ascii_downcase else explode[0] | hex(2) end]
     | add // "");

def fits($schema):
  ($schema | if type == "object" then .type else . end) as $kind
  | if $kind == "null" then . == null
    elif $kind == "string" or $kind == "bytes" then type == "string"
    elif $kind == "boolean" then type == "boolean"
    elif $kind == "array" then type == "array"
    elif $kind == "int" or $kind == "long" or $kind == "float" or $kind == "double" then type == "number"
    else . != null end;

def encode($schema):
  ([$schema | .. | objects | select(.name? and .type? and (.fields? or .symbols?)) | {key: .name, value: .}]
   | from_entries) as $types
  | def one($node):
      ($node | if type == "string" then $types[split(".") | last] // . else . end) as $is
      | if ($is | type) == "array" then
          . as $value
          | first(range($is | length) | select(. as $branch | $value | fits($is[$branch]))) as $branch
          | ($branch | varint) + ($value | one($is[$branch]))
        else
          ($is | if type == "object" then .type else . end) as $kind
          | if $kind == "null" then ""
            elif $kind == "string" then text
            elif $kind == "boolean" then (if . then "01" else "00" end)
            elif $kind == "int" or $kind == "long" then varint
            elif $kind == "double" then ieee(11; 20) | (.low | little(4)) + (.high | little(4))
            elif $kind == "float" then ieee(8; 23) | .high | little(4)
            elif $kind == "enum" then . as $symbol | $is.symbols | index($symbol) | varint
            elif $kind == "array" then
              if length == 0 then "00" else (length | varint) + (map(one($is.items)) | add) + "00" end
            elif $kind == "map" then
              if length == 0 then "00"
              else (length | varint) + (to_entries | map((.key | text) + (.value | one($is.values))) | add) + "00" end
            elif $kind == "record" then
              . as $record
              | [$is.fields[] | . as $field
                 | (if $record | has($field.name) then $record[$field.name] else $field.default end)
                 | one($field.type)]
              | add
            else error("no encoding for \($kind)") end
        end;
    one($schema);
