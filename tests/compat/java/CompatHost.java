// One JVM for a whole test session: reads a JSON command per line, answers with a JSON line.
// It drives Kafka's Java clients and Kafka's own command-line tools; it decides nothing about right or wrong.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.utils.Exit;

public class CompatHost {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream ANSWERS = System.out;

    /** A tool asked to end the JVM: carried out as an exception, which it may catch; the first status counts. */
    private static final class ToolExit extends RuntimeException {}

    private static Integer exitStatus = null;

    private static void exit(int status) {
        if (exitStatus == null) {
            exitStatus = status;
        }
        throw new ToolExit();
    }

    public static void main(String[] arguments) throws Exception {
        Exit.setExitProcedure((status, message) -> exit(status));
        Exit.setHaltProcedure((status, message) -> exit(status));
        System.setOut(System.err);
        BufferedReader commands =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ObjectNode answer;
            try {
                answer = run(JSON.readTree(line));
            } catch (Throwable failure) {
                answer = failed(failure);
            }
            ANSWERS.println(JSON.writeValueAsString(answer));
            ANSWERS.flush();
        }
    }

    private static ObjectNode run(JsonNode command) throws Exception {
        switch (command.get("op").asText()) {
            case "produce": return produce(command);
            case "consume": return consume(command);
            case "share": return share(command);
            case "admin": return admin(command);
            case "tool": return tool(command);
            default: throw new IllegalArgumentException("unknown op " + command.get("op"));
        }
    }

    private static ObjectNode failed(Throwable failure) {
        Throwable cause = failure;
        while ((cause instanceof ExecutionException || cause instanceof InvocationTargetException)
                && cause.getCause() != null) {
            cause = cause.getCause();
        }
        ObjectNode answer = JSON.createObjectNode();
        answer.put("error", cause.getClass().getSimpleName());
        answer.put("message", String.valueOf(cause.getMessage()));
        return answer;
    }

    private static Properties properties(JsonNode config) {
        Properties properties = new Properties();
        config.fields().forEachRemaining(entry -> properties.put(entry.getKey(), entry.getValue().asText()));
        return properties;
    }

    private static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    private static void putBytes(ObjectNode node, String name, byte[] value) {
        if (value == null) {
            node.putNull(name);
        } else {
            node.put(name, Base64.getEncoder().encodeToString(value));
        }
    }

    private static ObjectNode produce(JsonNode command) throws Exception {
        ArrayNode results = JSON.createArrayNode();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                properties(command.get("config")), new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode message : command.get("messages")) {
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                    message.get("topic").asText(),
                    message.get("partition").asInt(),
                    message.hasNonNull("timestamp") ? message.get("timestamp").asLong() : null,
                    bytes(message.get("key")),
                    bytes(message.get("value")));
                for (JsonNode header : message.get("headers")) {
                    record.headers().add(header.get(0).asText(), bytes(header.get(1)));
                }
                sent.add(producer.send(record));
            }
            for (Future<RecordMetadata> future : sent) {
                ObjectNode result;
                try {
                    RecordMetadata metadata = future.get();
                    result = JSON.createObjectNode();
                    result.put("offset", metadata.offset());
                    result.put("timestamp", metadata.timestamp());
                } catch (ExecutionException refused) {
                    result = failed(refused);
                }
                results.add(result);
            }
        }
        return JSON.createObjectNode().set("results", results);
    }

    private static ObjectNode consume(JsonNode command) {
        ArrayNode records = JSON.createArrayNode();
        int wanted = command.get("count").asInt();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                properties(command.get("config")), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (JsonNode assignment : command.get("partitions")) {
                partitions.add(new TopicPartition(
                    assignment.get("topic").asText(), assignment.get("partition").asInt()));
            }
            consumer.assign(partitions);
            int index = 0;
            for (JsonNode assignment : command.get("partitions")) {
                consumer.seek(partitions.get(index++), assignment.get("start").asLong());
            }
            long deadline = System.nanoTime() + command.get("timeout_ms").asLong() * 1_000_000;
            while (records.size() < wanted && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    records.add(recordNode(record));
                }
            }
        }
        return JSON.createObjectNode().set("records", records);
    }

    /** Says of each record what the command names for its value and delivery, else that it is accepted. */
    private static ObjectNode share(JsonNode command) {
        ArrayNode deliveries = JSON.createArrayNode();
        ArrayNode errors = JSON.createArrayNode();
        int wanted = command.get("count").asInt();
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(
                properties(command.get("config")), new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(command.get("topic").asText()));
            long deadline = System.nanoTime() + command.get("timeout_ms").asLong() * 1_000_000;
            while (deliveries.size() < wanted && System.nanoTime() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    int delivery = record.deliveryCount().orElse((short) 0);
                    String said = command.path("say").path(record.value()).path(delivery - 1).asText("ACCEPT");
                    consumer.acknowledge(record, AcknowledgeType.valueOf(said));
                    deliveries.addArray().add(record.value()).add(delivery).add(said);
                }
                consumer.commitSync().forEach((partition, error) ->
                    error.ifPresent(refused -> errors.add(partition + ": " + refused)));
            }
        }
        ObjectNode answer = JSON.createObjectNode();
        answer.set("deliveries", deliveries);
        answer.set("errors", errors);
        return answer;
    }

    private static ObjectNode recordNode(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode node = JSON.createObjectNode();
        node.put("topic", record.topic());
        node.put("partition", record.partition());
        node.put("offset", record.offset());
        node.put("timestamp", record.timestamp());
        node.put("timestamp_type", record.timestampType().name);
        putBytes(node, "key", record.key());
        putBytes(node, "value", record.value());
        ArrayNode headers = node.putArray("headers");
        for (Header header : record.headers()) {
            ArrayNode pair = headers.addArray();
            pair.add(header.key());
            if (header.value() == null) {
                pair.addNull();
            } else {
                pair.add(Base64.getEncoder().encodeToString(header.value()));
            }
        }
        return node;
    }

    private interface Describe<T> {
        Object of(T value) throws Exception;
    }

    /** Every future of a per-item result by name: its description, or the error that it ended with. */
    private static <K, T> ObjectNode outcomes(Map<K, KafkaFuture<T>> futures, Describe<T> describe) {
        Map<String, Object> sorted = new TreeMap<>();
        futures.forEach((name, future) -> {
            try {
                sorted.put(String.valueOf(name), describe.of(future.get()));
            } catch (Exception refused) {
                sorted.put(String.valueOf(name), failed(refused));
            }
        });
        return JSON.valueToTree(sorted);
    }

    private static ObjectNode admin(JsonNode command) throws Exception {
        try (Admin admin = Admin.create(properties(command.get("config")))) {
            JsonNode arguments = command.get("arguments");
            switch (command.get("call").asText()) {
                case "createTopics": return createTopics(admin, arguments);
                case "listTopics":
                    return JSON.createObjectNode().set("names", JSON.valueToTree(admin.listTopics().names().get()));
                case "describeTopics":
                    return outcomes(admin.describeTopics(names(arguments)).topicNameValues(),
                        CompatHost::topic);
                case "describeTopicsById":
                    return outcomes(admin.describeTopics(ids(arguments)).topicIdValues(), CompatHost::topic);
                case "deleteTopics":
                    return outcomes(admin.deleteTopics(names(arguments)).topicNameValues(), done -> "ok");
                case "deleteTopicsById":
                    return outcomes(admin.deleteTopics(ids(arguments)).topicIdValues(), done -> "ok");
                case "createPartitions": return createPartitions(admin, arguments);
                case "deleteRecords": return deleteRecords(admin, arguments);
                case "describeConfigs": return describeConfigs(admin, arguments);
                case "incrementalAlterConfigs": return incrementalAlterConfigs(admin, arguments);
                case "listConfigResources": return listConfigResources(admin, arguments);
                case "describeCluster": return describeCluster(admin);
                case "describeLogDirs": return describeLogDirs(admin, arguments);
                case "listOffsets": return listOffsets(admin, arguments);
                case "describeProducers": return describeProducers(admin, arguments);
                default: throw new IllegalArgumentException("unknown call " + command.get("call"));
            }
        }
    }

    private static TopicCollection.TopicNameCollection names(JsonNode arguments) {
        List<String> names = new ArrayList<>();
        arguments.get("topics").forEach(name -> names.add(name.asText()));
        return TopicCollection.ofTopicNames(names);
    }

    private static TopicCollection.TopicIdCollection ids(JsonNode arguments) {
        List<Uuid> ids = new ArrayList<>();
        arguments.get("ids").forEach(id -> ids.add(Uuid.fromString(id.asText())));
        return TopicCollection.ofTopicIds(ids);
    }

    private static TopicPartition partition(JsonNode node) {
        return new TopicPartition(node.get("topic").asText(), node.get("partition").asInt());
    }

    private static Map<String, Object> topic(TopicDescription description) {
        Map<String, Object> node = new TreeMap<>();
        node.put("name", description.name());
        node.put("id", description.topicId().toString());
        node.put("internal", description.isInternal());
        List<Object> partitions = new ArrayList<>();
        for (TopicPartitionInfo info : description.partitions()) {
            Map<String, Object> partition = new TreeMap<>();
            partition.put("partition", info.partition());
            partition.put("leader", info.leader() == null ? -1 : info.leader().id());
            partition.put("replicas", info.replicas().stream().map(Node::id).toList());
            partition.put("isr", info.isr().stream().map(Node::id).toList());
            partitions.add(partition);
        }
        node.put("partitions", partitions);
        return node;
    }

    private static ObjectNode createTopics(Admin admin, JsonNode arguments) {
        List<NewTopic> topics = new ArrayList<>();
        for (JsonNode wanted : arguments.get("topics")) {
            NewTopic topic;
            if (wanted.has("assignments")) {
                Map<Integer, List<Integer>> replicas = new HashMap<>();
                wanted.get("assignments").fields().forEachRemaining(entry -> {
                    List<Integer> brokers = new ArrayList<>();
                    entry.getValue().forEach(broker -> brokers.add(broker.asInt()));
                    replicas.put(Integer.parseInt(entry.getKey()), brokers);
                });
                topic = new NewTopic(wanted.get("name").asText(), replicas);
            } else {
                topic = new NewTopic(wanted.get("name").asText(),
                    wanted.has("partitions") ? Optional.of(wanted.get("partitions").asInt()) : Optional.empty(),
                    wanted.has("replicas")
                        ? Optional.of((short) wanted.get("replicas").asInt()) : Optional.empty());
            }
            if (wanted.has("configs")) {
                Map<String, String> configs = new HashMap<>();
                wanted.get("configs").fields()
                    .forEachRemaining(entry -> configs.put(entry.getKey(), entry.getValue().asText()));
                topic.configs(configs);
            }
            topics.add(topic);
        }
        CreateTopicsOptions options =
            new CreateTopicsOptions().validateOnly(arguments.path("validate_only").asBoolean());
        CreateTopicsResult result = admin.createTopics(topics, options);
        return outcomes(result.values(), done -> "ok").setAll(createdDetails(result, arguments));
    }

    private static ObjectNode createdDetails(CreateTopicsResult result, JsonNode arguments) {
        ObjectNode details = JSON.createObjectNode();
        if (!arguments.path("details").asBoolean()) {
            return details;
        }
        for (String name : result.values().keySet()) {
            try {
                ObjectNode node = details.putObject(name);
                node.put("id", result.topicId(name).get().toString());
                node.put("partitions", result.numPartitions(name).get());
                node.put("replicas", result.replicationFactor(name).get());
                node.set("configs", configNode(result.config(name).get()));
            } catch (Exception refused) {
                details.set(name, failed(refused));
            }
        }
        return details;
    }

    private static ObjectNode createPartitions(Admin admin, JsonNode arguments) {
        Map<String, NewPartitions> wanted = new HashMap<>();
        arguments.get("topics").fields().forEachRemaining(
            entry -> wanted.put(entry.getKey(), NewPartitions.increaseTo(entry.getValue().asInt())));
        CreatePartitionsOptions options =
            new CreatePartitionsOptions().validateOnly(arguments.path("validate_only").asBoolean());
        return outcomes(admin.createPartitions(wanted, options).values(), done -> "ok");
    }

    private static ObjectNode deleteRecords(Admin admin, JsonNode arguments) {
        Map<TopicPartition, RecordsToDelete> wanted = new HashMap<>();
        for (JsonNode node : arguments.get("partitions")) {
            wanted.put(partition(node), RecordsToDelete.beforeOffset(node.get("before").asLong()));
        }
        return outcomes(admin.deleteRecords(wanted).lowWatermarks(), DeletedRecords::lowWatermark);
    }

    private static ConfigResource resource(JsonNode node) {
        return new ConfigResource(
            ConfigResource.Type.valueOf(node.get("type").asText()), node.get("name").asText());
    }

    private static ObjectNode configNode(Config config) {
        ObjectNode node = JSON.createObjectNode();
        for (ConfigEntry entry : config.entries()) {
            ObjectNode value = node.putObject(entry.name());
            value.put("value", entry.value());
            value.put("source", String.valueOf(entry.source()));
            value.put("type", String.valueOf(entry.type()));
            value.put("default", entry.isDefault());
            value.put("read_only", entry.isReadOnly());
            value.put("sensitive", entry.isSensitive());
            value.put("documentation", entry.documentation());
            ArrayNode synonyms = value.putArray("synonyms");
            entry.synonyms().forEach(
                synonym -> synonyms.addArray().add(synonym.name()).add(synonym.value())
                    .add(String.valueOf(synonym.source())));
        }
        return node;
    }

    private static ObjectNode describeConfigs(Admin admin, JsonNode arguments) {
        List<ConfigResource> resources = new ArrayList<>();
        arguments.get("resources").forEach(node -> resources.add(resource(node)));
        DescribeConfigsOptions options = new DescribeConfigsOptions().includeSynonyms(true)
            .includeDocumentation(arguments.path("documentation").asBoolean());
        Map<String, KafkaFuture<Config>> byName = new HashMap<>();
        admin.describeConfigs(resources, options).values()
            .forEach((resource, future) -> byName.put(resource.type() + ":" + resource.name(), future));
        return outcomes(byName, CompatHost::configNode);
    }

    private static ObjectNode incrementalAlterConfigs(Admin admin, JsonNode arguments) {
        Map<ConfigResource, Collection<AlterConfigOp>> changes = new HashMap<>();
        for (JsonNode node : arguments.get("resources")) {
            List<AlterConfigOp> operations = new ArrayList<>();
            for (JsonNode change : node.get("changes")) {
                operations.add(new AlterConfigOp(
                    new ConfigEntry(change.get(1).asText(), change.get(2).isNull() ? null : change.get(2).asText()),
                    AlterConfigOp.OpType.valueOf(change.get(0).asText())));
            }
            changes.put(resource(node), operations);
        }
        AlterConfigsOptions options =
            new AlterConfigsOptions().validateOnly(arguments.path("validate_only").asBoolean());
        Map<String, KafkaFuture<Void>> byName = new HashMap<>();
        admin.incrementalAlterConfigs(changes, options).values()
            .forEach((resource, future) -> byName.put(resource.type() + ":" + resource.name(), future));
        return outcomes(byName, done -> "ok");
    }

    private static ObjectNode listConfigResources(Admin admin, JsonNode arguments) throws Exception {
        List<String> found = new ArrayList<>();
        for (ConfigResource resource : admin.listConfigResources(
                Set.of(ConfigResource.Type.valueOf(arguments.get("type").asText())),
                new ListConfigResourcesOptions()).all().get()) {
            found.add(resource.name());
        }
        return JSON.createObjectNode().set("names", JSON.valueToTree(found));
    }

    private static ObjectNode describeCluster(Admin admin) throws Exception {
        DescribeClusterResult result = admin.describeCluster();
        ObjectNode node = JSON.createObjectNode();
        node.put("cluster_id", result.clusterId().get());
        node.put("controller", result.controller().get().id());
        ArrayNode nodes = node.putArray("nodes");
        for (Node broker : result.nodes().get()) {
            nodes.addObject().put("id", broker.id()).put("host", broker.host()).put("port", broker.port());
        }
        return node;
    }

    private static ObjectNode describeLogDirs(Admin admin, JsonNode arguments) {
        List<Integer> brokers = new ArrayList<>();
        arguments.get("brokers").forEach(broker -> brokers.add(broker.asInt()));
        return outcomes(admin.describeLogDirs(brokers).descriptions(), directories -> {
            Map<String, Object> node = new TreeMap<>();
            directories.forEach((path, directory) -> {
                Map<String, Object> inner = new TreeMap<>();
                inner.put("error", directory.error() == null ? null : directory.error().getClass().getSimpleName());
                inner.put("total_bytes", directory.totalBytes().orElse(-1));
                inner.put("usable_bytes", directory.usableBytes().orElse(-1));
                Map<String, Object> replicas = new TreeMap<>();
                directory.replicaInfos().forEach((partition, replica) -> {
                    Map<String, Object> values = new TreeMap<>();
                    values.put("size", replica.size());
                    values.put("lag", replica.offsetLag());
                    values.put("future", replica.isFuture());
                    replicas.put(partition.toString(), values);
                });
                inner.put("replicas", replicas);
                node.put(path, inner);
            });
            return node;
        });
    }

    private static OffsetSpec offsetSpec(String wanted) {
        switch (wanted) {
            case "earliest": return OffsetSpec.earliest();
            case "latest": return OffsetSpec.latest();
            case "max_timestamp": return OffsetSpec.maxTimestamp();
            case "earliest_local": return OffsetSpec.earliestLocal();
            case "latest_tiered": return OffsetSpec.latestTiered();
            default: return OffsetSpec.forTimestamp(Long.parseLong(wanted));
        }
    }

    private static ObjectNode listOffsets(Admin admin, JsonNode arguments) {
        Map<TopicPartition, OffsetSpec> wanted = new HashMap<>();
        for (JsonNode node : arguments.get("partitions")) {
            wanted.put(partition(node), offsetSpec(node.get("spec").asText()));
        }
        ListOffsetsResult result = admin.listOffsets(wanted);
        Map<TopicPartition, KafkaFuture<ListOffsetsResult.ListOffsetsResultInfo>> futures = new HashMap<>();
        wanted.keySet().forEach(partition -> futures.put(partition, result.partitionResult(partition)));
        return outcomes(futures, info -> {
            Map<String, Object> node = new TreeMap<>();
            node.put("offset", info.offset());
            node.put("timestamp", info.timestamp());
            node.put("epoch", info.leaderEpoch().orElse(-1));
            return node;
        });
    }

    private static ObjectNode describeProducers(Admin admin, JsonNode arguments) {
        List<TopicPartition> partitions = new ArrayList<>();
        arguments.get("partitions").forEach(node -> partitions.add(partition(node)));
        DescribeProducersResult result = admin.describeProducers(partitions);
        Map<TopicPartition, KafkaFuture<DescribeProducersResult.PartitionProducerState>> futures = new HashMap<>();
        partitions.forEach(partition -> futures.put(partition, result.partitionResult(partition)));
        return outcomes(futures, state -> {
            List<Object> producers = new ArrayList<>();
            for (ProducerState producer : state.activeProducers()) {
                Map<String, Object> node = new TreeMap<>();
                node.put("producer_id", producer.producerId());
                node.put("epoch", producer.producerEpoch());
                node.put("last_sequence", producer.lastSequence());
                node.put("last_timestamp", producer.lastTimestamp());
                node.put("transaction_start", producer.currentTransactionStartOffset().orElse(-1));
                producers.add(node);
            }
            return producers;
        });
    }

    /** Run a command-line tool's main method in this JVM, with its streams caught. */
    private static ObjectNode tool(JsonNode command) throws Exception {
        String[] words = JSON.convertValue(command.get("args"), String[].class);
        byte[] input = command.path("stdin").asText("").getBytes(StandardCharsets.UTF_8);
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        PrintStream oldOut = System.out;
        PrintStream oldErr = System.err;
        java.io.InputStream oldIn = System.in;
        exitStatus = null;
        String thrown = null;
        try {
            System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
            System.setIn(new ByteArrayInputStream(input));
            Class<?> tool = Class.forName(command.get("main").asText());
            tool.getMethod("main", String[].class).invoke(null, (Object) words);
        } catch (InvocationTargetException ended) {
            if (!(ended.getCause() instanceof ToolExit)) {
                thrown = String.valueOf(ended.getCause());
            }
        } finally {
            System.out.flush();
            System.setOut(oldOut);
            System.setErr(oldErr);
            System.setIn(oldIn);
        }
        ObjectNode answer = JSON.createObjectNode();
        answer.put("status", exitStatus != null ? exitStatus : thrown != null ? 1 : 0);
        answer.put("stdout", kept(output.toString(StandardCharsets.UTF_8), command));
        answer.put("stderr", errors.toString(StandardCharsets.UTF_8));
        answer.put("thrown", thrown);
        return answer;
    }

    /** The output without the lines that the caller does not want to see, which may be hundreds of thousands. */
    private static String kept(String output, JsonNode command) {
        if (!command.has("drop")) {
            return output;
        }
        java.util.regex.Pattern drop = java.util.regex.Pattern.compile(command.get("drop").asText());
        StringBuilder lines = new StringBuilder();
        output.lines().filter(line -> !drop.matcher(line).find())
            .forEach(line -> lines.append(line).append('\n'));
        return lines.toString();
    }
}
