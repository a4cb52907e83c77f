-- MRC in Wireshark and tshark: the UDP payload from the BTH on, with the fields of SACK, NACK and Write.
--
--   wireshark -X lua_script:mrc.lua capture.pcap
--   tshark    -X lua_script:mrc.lua -r capture.pcap -Y 'mrc.rtx == 1'
--
-- Ports are of no use, as each end takes free ones: a datagram is MRC if its opcode, partition key and length fit.
-- Offsets and readings as in docs/explain/mrc-wire.md.

local mrc = Proto("mrc", "Multipath Reliable Connection")

local OPCODES = {
    [0xC6] = "Write first", [0xC7] = "Write middle", [0xC8] = "Write last", [0xC9] = "Write last with immediate",
    [0xCA] = "Write only", [0xCB] = "Write only with immediate", [0xD1] = "ACK", [0xD8] = "Endpoint request",
    [0xD9] = "Endpoint response", [0xDC] = "SACK", [0xDD] = "NACK", [0xDE] = "Probe",
}
-- bytes after the BTH and before the iCRC, of packets without payload
local LENGTHS = { [0xD1] = 4, [0xD8] = 16, [0xD9] = 36, [0xDC] = 36, [0xDD] = 20, [0xDE] = 16 }
local REASONS = {
    [0x01] = "trimmed", [0x02] = "trimmed at the last hop", [0x06] = "no bitmap", [0x07] = "no packet buffer",
    [0x0A] = "no resource", [0x0B] = "PSN out of window", [0x19] = "unexpected event",
}
local IMMEDIATE = { [0xC9] = true, [0xCB] = true }

local f = mrc.fields
f.opcode = ProtoField.uint8("mrc.opcode", "Opcode", base.HEX, OPCODES)
f.qp = ProtoField.uint24("mrc.qp", "Destination queue pair", base.HEX)
f.psn = ProtoField.uint32("mrc.psn", "PSN", base.DEC, nil, 0x00FFFFFF)
f.ack = ProtoField.bool("mrc.ackreq", "Acknowledge request", 32, nil, 0x80000000)
f.rtx = ProtoField.bool("mrc.rtx", "Sent again", 32, nil, 0x20000000)
f.ts = ProtoField.bool("mrc.ts", "Timestamp follows", 32, nil, 0x10000000)
f.ev = ProtoField.uint32("mrc.ev", "Entropy value", base.HEX)
f.rqmsn = ProtoField.uint16("mrc.rqmsn", "Messages with immediate")
f.msn = ProtoField.uint16("mrc.msn", "Message")
f.txts = ProtoField.uint16("mrc.timestamp", "Timestamp (128 ns)")
f.va = ProtoField.uint64("mrc.va", "Address", base.HEX)
f.rkey = ProtoField.uint32("mrc.rkey", "Key", base.HEX)
f.dmalen = ProtoField.uint32("mrc.length", "Bytes to the end of the message")
f.imm = ProtoField.uint32("mrc.imm", "Immediate", base.HEX)
f.cack = ProtoField.uint32("mrc.sack.cack", "All have arrived before", base.DEC, nil, 0x00FFFFFF)
f.offset = ProtoField.int16("mrc.sack.offset", "The bitmap begins so far from there")
f.bitmap = ProtoField.uint64("mrc.sack.bitmap", "Bitmap", base.HEX)
f.reason = ProtoField.uint8("mrc.nack.reason", "Reason", base.HEX, REASONS)
f.nackpsn = ProtoField.uint32("mrc.nack.psn", "PSN refused", base.DEC, nil, 0x00FFFFFF)

local source_port = Field.new("udp.srcport")
local flow_label = Field.new("ipv6.flow")

local function is_mrc(buffer)
    if buffer:len() < 16 then return false end
    local opcode = buffer(0, 1):uint()
    if not OPCODES[opcode] or buffer(2, 2):uint() ~= 0xFFFF then return false end
    local length = LENGTHS[opcode]
    return not length or buffer:reported_len() == 12 + length + 4
end

local function write(buffer, tree, opcode, has_timestamp)
    tree:add(f.rqmsn, buffer(12, 2))
    tree:add(f.msn, buffer(14, 2))
    local at = 16
    if has_timestamp then
        tree:add(f.txts, buffer(at, 2))
        at = at + 4
    end
    if buffer:len() < at + 16 then return end
    tree:add(f.va, buffer(at, 8))
    tree:add(f.rkey, buffer(at + 8, 4))
    tree:add(f.dmalen, buffer(at + 12, 4))
    if IMMEDIATE[opcode] and buffer:len() >= at + 20 then tree:add(f.imm, buffer(at + 16, 4)) end
end

function mrc.dissector(buffer, pinfo, root)
    if not is_mrc(buffer) then return 0 end
    pinfo.cols.protocol = "MRC"
    local opcode, word = buffer(0, 1):uint(), buffer(8, 4):uint()
    local psn, rtx = bit.band(word, 0xFFFFFF), bit.band(word, 0x20000000) ~= 0
    local tree = root:add(mrc, buffer())
    tree:add(f.opcode, buffer(0, 1))
    tree:add(f.qp, buffer(5, 3))
    tree:add(f.psn, buffer(8, 4))
    tree:add(f.ack, buffer(8, 4))
    tree:add(f.rtx, buffer(8, 4))
    tree:add(f.ts, buffer(8, 4))
    local port, label = source_port(), flow_label()
    if port then
        local ev = port.value * 65536 + (label and bit.band(label.value, 0xFFFF) or 0)
        tree:add(f.ev, ev):set_generated()
    end
    local info = string.format("%s  QP %d  PSN %d%s", OPCODES[opcode], buffer(5, 3):uint(), psn, rtx and "  again" or "")
    if opcode <= 0xCB then
        write(buffer, tree, opcode, bit.band(word, 0x10000000) ~= 0)
    elseif opcode == 0xDC then
        tree:add(f.cack, buffer(24, 4))
        tree:add(f.offset, buffer(30, 2))
        tree:add(f.bitmap, buffer(32, 8))
    elseif opcode == 0xDD then
        tree:add(f.reason, buffer(14, 1))
        tree:add(f.nackpsn, buffer(24, 4))
    end
    pinfo.cols.info = info
    return buffer:len()
end

mrc:register_heuristic("udp", function(buffer, pinfo, root)
    if not is_mrc(buffer) then return false end
    mrc.dissector(buffer, pinfo, root)
    return true
end)
DissectorTable.get("udp.port"):add_for_decode_as(mrc)
