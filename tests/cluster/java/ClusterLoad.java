// Kafka's Java clients as load on a cluster: writers, members of a group and a copier, started and stopped by lines
// on standard input, which tell on standard output what they did and what they were told. They judge nothing.
//
// Commands:  write NAME BOOTSTRAP TOPIC PARTITIONS PAUSE_MS
//            read NAME BOOTSTRAP GROUP TOPIC
//            copy NAME BOOTSTRAP TOPIC PARTITIONS TARGET
//            stop-writers | stop-readers (the copier is one)
// Lines out, fields between tabs; AT and ASKED_AT are milliseconds of the system's monotonic clock, TRANSACTION is
// the producer's own number, or 0:
//            sent      AT NAME TOPIC PARTITION VALUE TRANSACTION
//            acked     AT NAME TOPIC PARTITION VALUE TRANSACTION OFFSET
//            failed    AT NAME TOPIC PARTITION VALUE ERROR
//            assigned  AT GROUP TOPIC MEMBER GENERATION PARTITION,...
//            fetched   AT GROUP TOPIC PARTITION OFFSET ASKED_AT
//            polled    AT NAME TOPIC SESSION PARTITION START NEXT OFFSET=VALUE;...
//            committed AT GROUP TOPIC MEMBER GENERATION PARTITION OFFSET ASKED_AT
//            depends   AT NAME TRANSACTION VALUE;...
//            ended     AT NAME TRANSACTION OUTCOME
//            trouble   AT NAME ERROR
//            stopped   writers | readers

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class ClusterLoad {
    private static final PrintStream OUT = System.out;
    private static final List<Client> writers = new ArrayList<>();
    private static final List<Client> readers = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        say("ready");
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "write" -> begin(writers, new Writer(words));
                case "read" -> begin(readers, new Reader(words));
                case "copy" -> begin(readers, new Copier(words));
                case "stop-writers" -> stop(writers, "writers");
                case "stop-readers" -> stop(readers, "readers");
                default -> throw new IllegalArgumentException(line);
            }
        }
        System.exit(0);
    }

    private static void begin(List<Client> clients, Client client) {
        clients.add(client);
        client.start();
    }

    private static void stop(List<Client> clients, String name) throws InterruptedException {
        for (Client client : clients) {
            client.isStopping = true;
        }
        for (Client client : clients) {
            client.join();
        }
        clients.clear();
        say("stopped", name);
    }

    private static long now() {
        return System.nanoTime() / 1_000_000;
    }

    private static void say(Object... fields) {
        StringBuilder line = new StringBuilder();
        for (Object field : fields) {
            line.append(line.length() == 0 ? "" : "\t").append(String.valueOf(field).replaceAll("[\t\n]", " "));
        }
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    private abstract static class Client extends Thread {
        volatile boolean isStopping = false;
        final String name;

        Client(String name) {
            super(name);
            this.name = name;
        }

        abstract void work() throws Exception;

        @Override
        public void run() {
            try {
                work();
            } catch (Exception error) {
                say("trouble", now(), name, error);
            }
        }
    }

    private static final class Writer extends Client {
        private final String bootstrap;
        private final String topic;
        private final int partitions;
        private final long pauseMs;

        Writer(String[] words) {
            super(words[1]);
            bootstrap = words[2];
            topic = words[3];
            partitions = Integer.parseInt(words[4]);
            pauseMs = Long.parseLong(words[5]);
        }

        @Override
        void work() throws InterruptedException {
            Properties config = new Properties();
            config.put("bootstrap.servers", bootstrap);
            config.put("acks", "all");
            config.put("enable.idempotence", "true");
            config.put("linger.ms", "2");
            config.put("delivery.timeout.ms", "120000");
            config.put("request.timeout.ms", "10000");
            config.put("max.block.ms", "120000");
            config.put("retry.backoff.ms", "20");
            config.put("retry.backoff.max.ms", "200");
            config.put("reconnect.backoff.ms", "20");
            config.put("reconnect.backoff.max.ms", "200");
            try (KafkaProducer<String, String> producer =
                    new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
                for (long number = 0; !isStopping; number++) {
                    int partition = (int) (number % partitions);
                    String value = topic + "|" + name + "|" + number;
                    say("sent", now(), name, topic, partition, value, 0);
                    producer.send(new ProducerRecord<>(topic, partition, null, value), (metadata, error) -> {
                        if (error == null) {
                            say("acked", now(), name, topic, partition, value, 0, metadata.offset());
                        } else {
                            say("failed", now(), name, topic, partition, value, error);
                        }
                    });
                    Thread.sleep(pauseMs);
                }
                producer.flush();
            }
        }
    }

    /** Reads committed records, and knows from where to where. */
    private abstract static class Consuming extends Client {
        final String topic;
        final String group;
        final String consumerName;
        final Properties config = new Properties();
        final Map<TopicPartition, Long> positions = new HashMap<>();
        KafkaConsumer<String, String> consumer;
        int session = 0;

        Consuming(String name, String consumerName, String bootstrap, String group, String topic) {
            super(name);
            this.consumerName = consumerName;
            this.group = group;
            this.topic = topic;
            config.put("bootstrap.servers", bootstrap);
            config.put("group.id", group);
            config.put("isolation.level", "read_committed");
            config.put("enable.auto.commit", "false");
            config.put("auto.offset.reset", "none");
            config.put("request.timeout.ms", "10000");
            config.put("default.api.timeout.ms", "10000");
            config.put("retry.backoff.ms", "20");
            config.put("retry.backoff.max.ms", "200");
            config.put("reconnect.backoff.ms", "20");
            config.put("reconnect.backoff.max.ms", "200");
        }

        abstract void begin();

        abstract void turn();

        @Override
        void work() {
            try (KafkaConsumer<String, String> opened =
                    new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
                consumer = opened;
                begin();
                while (!isStopping) {
                    try {
                        turn();
                    } catch (KafkaException error) {
                        // A time-out, or no member any more: the next turn finds its way back.
                        say("trouble", now(), name, error);
                    }
                }
            }
        }

        /** Begin at what the group has committed. */
        void seek(Collection<TopicPartition> partitions) {
            session++;
            long askedAt = now();
            Map<TopicPartition, OffsetAndMetadata> committed = committed(Set.copyOf(partitions));
            for (TopicPartition place : partitions) {
                OffsetAndMetadata found = committed.get(place);
                say("fetched", now(), group, topic, place.partition(), found == null ? -1 : found.offset(), askedAt);
                long position = found == null ? 0 : found.offset();
                positions.put(place, position);
                consumer.seek(place, position);
            }
        }

        private Map<TopicPartition, OffsetAndMetadata> committed(Set<TopicPartition> partitions) {
            while (true) {
                try {
                    return consumer.committed(partitions);
                } catch (KafkaException error) {
                    // The coordinator is on its way to another broker. Without an answer there is no position.
                    say("trouble", now(), name, error);
                    if (isStopping) {
                        throw error;
                    }
                }
            }
        }

        /** Tell what came, and move on; the new positions. */
        Map<TopicPartition, OffsetAndMetadata> take(ConsumerRecords<String, String> records) {
            Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
            for (TopicPartition place : records.partitions()) {
                StringBuilder seen = new StringBuilder();
                long start = positions.get(place);
                long next = start;
                for (ConsumerRecord<String, String> record : records.records(place)) {
                    seen.append(seen.length() == 0 ? "" : ";").append(record.offset()).append('=').append(record.value());
                    next = record.offset() + 1;
                }
                positions.put(place, next);
                ends.put(place, new OffsetAndMetadata(next));
                say("polled", now(), consumerName, topic, session, place.partition(), start, next, seen);
            }
            return ends;
        }
    }

    /** A member of a classic group that commits after every poll. */
    private static final class Reader extends Consuming implements ConsumerRebalanceListener {
        Reader(String[] words) {
            super(words[1], words[3] + "/" + words[1], words[2], words[3], words[4]);
            config.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
            config.put("session.timeout.ms", "20000");
            config.put("heartbeat.interval.ms", "500");
        }

        @Override
        void begin() {
            consumer.subscribe(List.of(topic), this);
        }

        @Override
        void turn() {
            Map<TopicPartition, OffsetAndMetadata> ends = take(consumer.poll(Duration.ofMillis(100)));
            if (!ends.isEmpty()) {
                long askedAt = now();
                ConsumerGroupMetadata known = consumer.groupMetadata();
                consumer.commitSync(ends);
                ends.forEach((place, end) -> say("committed", now(), group, topic, known.memberId(),
                    known.generationId(), place.partition(), end.offset(), askedAt));
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            ConsumerGroupMetadata known = consumer.groupMetadata();
            say("assigned", now(), group, topic, known.memberId(), known.generationId(),
                consumer.assignment().stream().map(place -> "" + place.partition()).collect(Collectors.joining(",")));
            seek(partitions);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            partitions.forEach(positions::remove);
        }
    }

    /** Reads one topic and writes another, exactly once: copies and new positions are one transaction. */
    private static final class Copier extends Consuming {
        private final String bootstrap;
        private final String target;
        private final List<TopicPartition> places = new ArrayList<>();
        private KafkaProducer<String, String> producer;
        private int number = 0;

        Copier(String[] words) {
            super(words[1], words[1], words[2], "group-of-" + words[1], words[3]);
            bootstrap = words[2];
            target = words[5];
            for (int partition = 0; partition < Integer.parseInt(words[4]); partition++) {
                places.add(new TopicPartition(topic, partition));
            }
            config.put("max.poll.records", "50");
        }

        @Override
        void work() {
            super.work();
            producer.close();
        }

        @Override
        void begin() {
            consumer.assign(places);
            beginAnew();
        }

        /** A producer in its first state, by when all that was open is aborted; and back to what is committed. */
        private void beginAnew() {
            while (true) {
                try {
                    openProducer();
                    break;
                } catch (KafkaException error) {
                    say("trouble", now(), name, error);
                    if (isStopping) {
                        throw error;
                    }
                }
            }
            seek(places);
        }

        private void openProducer() {
            if (producer != null) {
                producer.close(Duration.ZERO);
            }
            Properties settings = new Properties();
            settings.put("bootstrap.servers", bootstrap);
            settings.put("transactional.id", name);
            settings.put("transaction.timeout.ms", "30000");
            settings.put("linger.ms", "2");
            settings.put("request.timeout.ms", "10000");
            settings.put("max.block.ms", "20000");
            settings.put("retry.backoff.ms", "20");
            settings.put("retry.backoff.max.ms", "200");
            settings.put("reconnect.backoff.ms", "20");
            settings.put("reconnect.backoff.max.ms", "200");
            producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
            producer.initTransactions();
        }

        @Override
        void turn() {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
            if (records.isEmpty()) {
                return;
            }
            Map<TopicPartition, OffsetAndMetadata> ends = take(records);
            number++;
            List<String> values = new ArrayList<>();
            records.forEach(record -> values.add(record.value()));
            say("depends", now(), name, number, String.join(";", values));
            try {
                producer.beginTransaction();
                records.forEach(this::copy);
                producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
                producer.commitTransaction();
                say("ended", now(), name, number, "commit");
            } catch (KafkaException error) {
                say("trouble", now(), name, error);
                giveUp();
            }
        }

        private void copy(ConsumerRecord<String, String> record) {
            String value = target + "|copy of|" + record.value();
            int partition = record.partition();
            int transaction = number;
            say("sent", now(), name, target, partition, value, transaction);
            producer.send(new ProducerRecord<>(target, partition, null, value), (metadata, error) -> {
                if (error == null) {
                    say("acked", now(), name, target, partition, value, transaction, metadata.offset());
                }
            });
        }

        private void giveUp() {
            try {
                producer.abortTransaction();
                say("ended", now(), name, number, "abort");
                seek(places);
            } catch (KafkaException | IllegalStateException error) {
                // Also after a commit that timed out, of which nobody knows yet what became.
                say("trouble", now(), name, error);
                say("ended", now(), name, number, "unknown");
                beginAnew();
            }
        }
    }
}
