package thermocline.interop;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Enumeration;
import java.util.SplittableRandom;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;

/** What the tests write: bytes that follow from ledger and entry, so that one entry is never taken for another. */
final class Payloads {
    static final byte[] PASSWORD = "a password".getBytes(java.nio.charset.StandardCharsets.UTF_8);

    private static final int[] LENGTHS = {0, 1, 17, 100, 1000, 5000};

    private Payloads() {}

    /** The bytes of entry {@code entry} of ledger {@code ledger}; their lengths vary and some are empty. */
    static byte[] of(long ledger, long entry) {
        return of(ledger, entry, LENGTHS[(int) (entry % LENGTHS.length)]);
    }

    static byte[] of(long ledger, long entry, int length) {
        byte[] bytes = new byte[length];
        new SplittableRandom(ledger * 1_000_003 + entry).nextBytes(bytes);
        return bytes;
    }

    /** Appends the next {@code count} entries, each after the one before is acknowledged. */
    static void append(LedgerHandle writer, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            long next = writer.getLastAddPushed() + 1;
            assertEquals(next, writer.addEntry(of(writer.getId(), next)));
        }
    }

    /** Reads {@code first..=last} and compares each with what was written. */
    static void check(LedgerHandle reader, long first, long last) throws Exception {
        check(reader.getId(), first, last, reader.readEntries(first, last));
    }

    /** Compares {@code entries} with what was written as {@code first..=last}. */
    static void check(long ledger, long first, long last, Enumeration<LedgerEntry> entries) {
        for (long entry = first; entry <= last; entry++) {
            LedgerEntry read = entries.nextElement();
            assertEquals(entry, read.getEntryId());
            assertArrayEquals(of(ledger, entry), read.getEntry(), "payload of entry " + entry);
        }
        assertEquals(false, entries.hasMoreElements(), "entries beyond " + last);
    }

    /** The length of a ledger with {@code count} entries. */
    static long length(int count) {
        long length = 0;
        for (int entry = 0; entry < count; entry++) {
            length += LENGTHS[entry % LENGTHS.length];
        }
        return length;
    }
}
